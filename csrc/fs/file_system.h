// SPDX-License-Identifier: Apache-2.0
//
// FileSystem: everything that modcache does to files of its own. A seam: tests put a file system
// that fails on demand in its place. SQLite reads and writes its database itself, through the VFS
// that the file system names.
//
// All calls may be made from any thread. Interrupted and short reads and writes are continued;
// descriptors are never inherited by exec. Failures name the path: a missing file is kNotFound, a
// full disk or quota kNoSpace, anything else kIoError.
//
// A directory that others can reach may hold a pipe, a device or a link where a file is expected.
// So open() waits for nobody, and only ever opens regular files; kForeign says what stands there
// instead. No path given here may lead through a symbolic link, be it its last part or a folder on
// the way, except where the call says that it follows them: resolve() gives such a path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  std::int64_t changed_ns = 0;   // of contents or attributes; the kernel's own
  bool is_directory = false;
  bool is_regular = false;            // no directory, device, pipe, socket or link
  bool is_own = true;                 // of the user who runs this process
  std::uint32_t permissions = 0;      // as chmod takes them
  const char* kind = "regular file";  // or "directory", "symbolic link", "named pipe (FIFO)", ...

  bool is_same_file(const FileInfo& other) const {
    return device == other.device && inode == other.inode;
  }
};

// What is opened for writing has one name and belongs to the user who runs this process: through a
// hard link, or in another user's file, the bytes of a stranger would change. What is made gets no
// right that its folder does not give to the same people, and none for everybody to write it.
enum class OpenMode {
  kRead,
  kReadFollowing,    // the same where links may lead: a pack, a model, a file of the system
  kReadWrite,        // must exist
  kReadWriteCreate,  // made empty when missing
  kCreateExclusive,  // for reading and writing; must not exist
  kCreateToShare,    // the same, with the rights that the umask alone leaves: a pack
};

// Bytes of a file in memory, shared with everyone who maps or writes it. Touching bytes beyond the
// file's end kills the process: check File::info() first.
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

  // Reads up to `size_bytes`; fewer only at the file's end.
  virtual Result<std::size_t> read_at(std::uint64_t offset, void* target,
                                      std::size_t size_bytes) const = 0;
  // Writes the pieces one after another. After a failure any prefix may have been written.
  virtual Status write_at(std::uint64_t offset, const std::vector<Slice>& pieces) = 0;
  // Makes the file this long: what lies behind is lost, or zeros are added. REQUIRES: nobody reads
  // what is lost through a mapping.
  virtual Status truncate(std::uint64_t size_bytes) = 0;
  // Returns when the contents (not the name) survive power loss.
  virtual Status sync_data() = 0;
  virtual Result<FileInfo> info() const = 0;
  // The mapping may reach beyond the end of a file that grows, and outlives this object.
  virtual Result<std::shared_ptr<Mapping>> map(std::size_t size_bytes, bool is_writable) const = 0;

  // The exclusive lock that goes with this opening of the file (two openings exclude each other,
  // also within a process). It ends with unlock(), this object or the process; a forked child
  // does not keep it: its copy of the file is closed. False: somebody else has it.
  virtual Result<bool> try_lock() = 0;
  virtual void unlock() = 0;

  // A mark that this opening uses the file. It lasts until this object and all its mappings are
  // gone (also those that a forked child shares); it has nothing to do with the lock. Many openings
  // may hold a file kShared, or one alone kExclusive, for which it must have been opened for
  // writing. False: somebody else's hold is in the way. An error: there are no holds here, as on
  // some file systems.
  enum class Hold { kShared, kExclusive };
  virtual Result<bool> try_hold(Hold hold);

  virtual const std::string& path() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  // Follows links.
  virtual Result<FileInfo> info(const std::string& path) = 0;
  // What stands at the path itself: of a link, the link.
  virtual Result<FileInfo> name_info(const std::string& path) { return info(path); }
  // The absolute path without links that leads where this one does. The end of it that is not there
  // stays as it is; so does all of it where it cannot be followed.
  virtual std::string resolve(const std::string& path) { return path; }
  // Takes rights from an own file that its folder does not give, and that of everybody to write it.
  // A file that has no more rights than that stays as it is.
  virtual Status restrict_rights(const std::string&) { return Status::ok(); }
  // Names in a directory, without "." and "..", in no order.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // Makes the directory and its parents where they are missing, for this user alone (0700).
  virtual Status make_directories(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  // A file that is not there counts as removed.
  virtual Status remove(const std::string& path) = 0;
  // Returns when the directory's names survive power loss.
  virtual Status sync_directory(const std::string& path) = 0;
  // Whether this process may write the file, or make files in the directory.
  virtual bool is_writable(const std::string& path) = 0;
  // The registered name of the VFS for databases on this file system; null: SQLite's default.
  // Lives as long as this object, which must outlive the databases.
  virtual const char* sqlite_vfs() const { return nullptr; }
};

// kForeign unless it is a regular file; the message says what stands at `path`.
Status check_is_file(const std::string& path, const FileInfo& info);
// kForeign unless it may be written, too: it has one name, and is this user's.
Status check_is_own_file(const std::string& path, const FileInfo& info);

// Waits for the lock of `file`: kBusy after `patience_ms`.
Status lock_within(File& file, std::int64_t patience_ms);

}  // namespace modcache::fs
