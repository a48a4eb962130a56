// SPDX-License-Identifier: Apache-2.0
//
// FileSystem: everything that modcache does to its own files. Tests replace it by a file system
// that fails on demand. SQLite reads and writes its database itself, through the VFS that the file
// system names.
//
// All calls may be made from any thread. Interrupted and short reads and writes are continued; exec
// never inherits a descriptor. Errors name the path: kNotFound for a missing file, kNoSpace for a
// full disk or quota, kIoError for anything else.
//
// A directory that others can write to may hold a pipe, a device or a link where a file is
// expected. So open() never blocks on one and only opens regular files; a kForeign error says what
// is there instead. No path given here may lead through a symbolic link, neither as its last part
// nor as a folder on the way, unless a call is documented to follow links. resolve() makes a path
// without links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace modcache::fs {

// Borrowed bytes to write.
struct Slice {
  const void* data = nullptr;
  std::size_t size_bytes = 0;
};

struct FileInfo {
  std::uint64_t size_bytes = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t link_count = 0;  // 0: the file was unlinked, and lives as long as it is open
  std::int64_t modified_ns = 0;  // since 1970; anybody may set it
  std::int64_t changed_ns = 0;   // last change of contents or attributes, set by the kernel alone
  bool is_directory = false;
  bool is_regular = false;            // not a directory, device, pipe, socket or link
  std::uint64_t owner = 0;            // the number of the user
  std::uint32_t permissions = 0;      // the bits that chmod takes
  const char* kind = "regular file";  // or "directory", "symbolic link", "named pipe (FIFO)", ...

  // Returns whether it belongs to the user who runs this process.
  bool is_own() const;
  bool is_same_file(const FileInfo& other) const {
    return device == other.device && inode == other.inode;
  }
};

// A file that is opened for writing has one name and belongs to the user who runs this process:
// otherwise a write would change a stranger's bytes through a hard link or in another user's file.
// A file that is created gets no permission that its folder does not give to the same people, and
// is never writable for everybody.
enum class OpenMode {
  kRead,
  kReadFollowing,    // as kRead, and follows links: for a pack, a model, a file of the system
  kReadWrite,        // must exist
  kReadWriteCreate,  // created empty when missing
  kCreateExclusive,  // for reading and writing; must not exist
  kCreateToShare,    // the same, with all permissions that the umask leaves: for a pack
};

// Bytes of a file in memory, as File::map() or File::map_copy() gave them. Touching bytes beyond
// the file's end kills the process, so check File::info() first.
class Mapping {
 public:
  virtual ~Mapping() = default;
  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 protected:
  Mapping(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

 private:
  std::byte* data_;
  std::size_t size_bytes_;
};

// An open file; closed when destroyed.
class File {
 public:
  virtual ~File() = default;

  // Reads up to `size_bytes` and returns how many were read: fewer only at the file's end.
  virtual Result<std::size_t> read_at(std::uint64_t offset, void* target,
                                      std::size_t size_bytes) const = 0;
  // Writes the pieces one after another. After an error any prefix of them may have been written.
  virtual Status write_at(std::uint64_t offset, const std::vector<Slice>& pieces) = 0;
  // Sets the length of the file, cutting bytes off or adding zeros. REQUIRES: nobody reads the
  // bytes that are cut off through a mapping.
  virtual Status truncate(std::uint64_t size_bytes) = 0;
  // Returns once the contents (not the name) survive a power loss.
  virtual Status sync_data() = 0;
  virtual Result<FileInfo> info() const = 0;
  // Maps the first `size_bytes`, which may reach beyond the end of a file that grows, and shares
  // them with everybody who maps or writes the file. The mapping outlives this object.
  virtual Result<std::shared_ptr<Mapping>> map(std::size_t size_bytes, bool is_writable) const = 0;
  // Maps a writable copy of these bytes, which costs nothing until somebody writes to it: a page is
  // copied then, and neither the file nor other mappings change. It outlives this object. Returns
  // an error where the file system has no such mappings, or kMostCopies of them live: Linux gives a
  // process 65,530 mappings, and one that has none left can start no thread. REQUIRES: the file has
  // the bytes, nobody writes to them any more, and there are any.
  static constexpr std::size_t kMostCopies = 4096;
  virtual Result<std::shared_ptr<Mapping>> map_copy(std::uint64_t offset,
                                                    std::size_t size_bytes) const;
  // A hint: these bytes will be read soon. Does not wait until they are there.
  virtual void expect(std::uint64_t offset, std::uint64_t size_bytes) const {
    (void)offset, (void)size_bytes;
  }

  // Takes the exclusive lock on the file without waiting. It belongs to this opening, so two
  // openings exclude each other also within a process. It ends with unlock(), this object or the
  // process. A forked child does not keep it: the child's copy of the descriptor is closed. Returns
  // false when somebody else has the lock.
  virtual Result<bool> try_lock() = 0;
  virtual void unlock() = 0;

  // Marks the file as used by this opening, until this object and all its mappings are gone, those
  // that a forked child shares included. Many openings may hold a file kShared, or one alone
  // kExclusive, for which it must have been opened for writing. Holds and the lock do not affect
  // each other. Returns false when somebody else's hold conflicts, and an error where the file
  // system has no holds.
  enum class Hold { kShared, kExclusive };
  virtual Result<bool> try_hold(Hold hold);
  // Returns the hold that another opening has, without taking one. The file may be opened for
  // reading alone.
  virtual Result<std::optional<Hold>> other_hold() const;

  virtual const std::string& path() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Opens a regular file, or creates it where the mode says so. kForeign: something else is there,
  // or a file that must not be written.
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  // Describes what the path leads to. Follows links.
  virtual Result<FileInfo> info(const std::string& path) = 0;
  // Describes what stands at the path itself: where that is a link, the link.
  virtual Result<FileInfo> name_info(const std::string& path) { return info(path); }
  // Returns the absolute path without links that leads to the same place. Missing parts at the end
  // stay as they are, and the whole path does where it cannot be followed.
  virtual std::string resolve(const std::string& path) { return path; }
  // Takes from our own file the permissions that its folder does not give, and that of everybody to
  // write it. Changes nothing when the file has no more than that.
  virtual Status restrict_rights(const std::string&) { return Status::ok(); }
  // Returns the names in a directory, without "." and "..", in no order.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // Creates the directory and its missing parents, for this user alone (0700).
  virtual Status make_directories(const std::string& path) = 0;
  // Renames a file and replaces the one at `to`, if any, in one step.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  // Removes a file. Ok when the file does not exist.
  virtual Status remove(const std::string& path) = 0;
  // Returns once the names in the directory survive a power loss.
  virtual Status sync_directory(const std::string& path) = 0;
  // Returns whether this process may write the file, or create files in the directory.
  virtual bool is_writable(const std::string& path) = 0;
  // The registered name of the VFS for databases on this file system; null means SQLite's default.
  // The VFS lives as long as this object, which must outlive the databases.
  virtual const char* sqlite_vfs() const { return nullptr; }
};

// Returns kForeign unless `info` is of a regular file. The message says what is at `path`.
Status check_is_file(const std::string& path, const FileInfo& info);
// Returns kForeign unless the file may also be written: it has one name and belongs to this user.
Status check_is_own_file(const std::string& path, const FileInfo& info);

// Takes the lock of `file`, waiting up to `patience_ms`; kBusy after that.
Status lock_within(File& file, std::int64_t patience_ms);

}  // namespace modcache::fs
