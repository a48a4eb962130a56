// SPDX-License-Identifier: Apache-2.0
#include "fs/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/fork.h"
#include "base/process_wide.h"
#include "fs/posix_calls.h"
#include "fs/posix_open.h"

namespace modcache::fs {
namespace {

class PosixMapping : public Mapping {
 public:
  // `first_page` begins `skipped_bytes` before the bytes that were asked for.
  PosixMapping(void* first_page, std::size_t skipped_bytes, std::size_t size_bytes)
      : Mapping(static_cast<std::byte*>(first_page) + skipped_bytes, size_bytes),
        first_page_(first_page),
        mapped_bytes_(skipped_bytes + size_bytes) {}
  ~PosixMapping() override { ::munmap(first_page_, mapped_bytes_); }
  PosixMapping(const PosixMapping&) = delete;
  PosixMapping& operator=(const PosixMapping&) = delete;

 private:
  void* const first_page_;
  const std::size_t mapped_bytes_;
};

// Counts the copies that live, as File::map_copy() gives out so many and no more.
class PosixCopy final : public PosixMapping {
 public:
  using PosixMapping::PosixMapping;
  ~PosixCopy() override { --live(); }
  PosixCopy(const PosixCopy&) = delete;
  PosixCopy& operator=(const PosixCopy&) = delete;

  // Returns false when there are as many as there may be. Otherwise one is to be made.
  static bool reserve() {
    if (++live() <= File::kMostCopies) return true;
    --live();
    return false;
  }
  static void give_up() { --live(); }

 private:
  static std::atomic<std::size_t>& live() {
    static std::atomic<std::size_t> count{0};
    return count;
  }
};

class PosixFile;

// The files that have a lock. flock belongs to the open file description, which fork shares: a
// child that kept its copy would keep the lock beyond the death of the parent.
struct LockedFiles : ProcessWide<LockedFiles> {
  LockedFiles();

  std::set<PosixFile*> files MODCACHE_GUARDED_BY(mutex);
};

class PosixFile final : public File {
 public:
  PosixFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~PosixFile() override {
    LockedFiles& locked = LockedFiles::instance();
    MutexLock lock(locked.mutex);
    locked.files.erase(this);
    close_descriptor();
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  Result<std::size_t> read_at(std::uint64_t offset, void* target,
                              std::size_t size_bytes) const override;
  Status write_at(std::uint64_t offset, const std::vector<Slice>& pieces) override;
  Status truncate(std::uint64_t size_bytes) override;
  Status sync_data() override;
  Result<FileInfo> info() const override;
  Result<std::shared_ptr<Mapping>> map(std::size_t size_bytes, bool is_writable) const override;
  Result<std::shared_ptr<Mapping>> map_copy(std::uint64_t offset,
                                            std::size_t size_bytes) const override;
  void expect(std::uint64_t offset, std::uint64_t size_bytes) const override {
    ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                    POSIX_FADV_WILLNEED);
  }
  Result<bool> try_lock() override;
  void unlock() override;
  Result<bool> try_hold(Hold hold) override;
  Result<std::optional<Hold>> other_hold() const override;
  const std::string& path() const override { return path_; }

  void close_descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

 private:
  const std::string path_;
  int descriptor_;
};

// Runs in a forked child, which has one thread, so nobody else uses the registry.
void close_locked_files() MODCACHE_LOCKS_UNCHECKED {
  for (PosixFile* file : LockedFiles::instance().files) file->close_descriptor();
  LockedFiles::instance().files.clear();
}

LockedFiles::LockedFiles() { run_in_forked_child(close_locked_files); }

Result<std::size_t> PosixFile::read_at(std::uint64_t offset, void* target,
                                       std::size_t size_bytes) const {
  std::size_t done = 0;
  while (done < size_bytes) {
    const ssize_t count = retry_interrupted([&] {
      return ::pread(descriptor_, static_cast<char*>(target) + done, size_bytes - done,
                     static_cast<off_t>(offset + done));
    });
    if (count < 0) return failure("read", path_, errno);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

Status PosixFile::write_at(std::uint64_t offset, const std::vector<Slice>& pieces) {
  std::vector<iovec> vectors;
  vectors.reserve(pieces.size());
  for (const Slice& piece : pieces) {
    if (piece.size_bytes > 0) vectors.push_back({const_cast<void*>(piece.data), piece.size_bytes});
  }
  std::size_t first = 0;
  while (first < vectors.size()) {
    const std::size_t count = std::min<std::size_t>(vectors.size() - first, IOV_MAX);
    const ssize_t written = retry_interrupted([&] {
      return ::pwritev(descriptor_, &vectors[first], static_cast<int>(count),
                       static_cast<off_t>(offset));
    });
    if (written < 0) return failure("write", path_, errno);
    // Partly written: skip the pieces that are done, and advance in the one that is not.
    // Nothing was written without an error: trying again could go on for ever.
    if (written == 0) return failure("write", path_, ENOSPC);
    offset += static_cast<std::uint64_t>(written);
    auto left = static_cast<std::size_t>(written);
    while (left > 0 && left >= vectors[first].iov_len) left -= vectors[first++].iov_len;
    if (left > 0) {
      vectors[first].iov_base = static_cast<char*>(vectors[first].iov_base) + left;
      vectors[first].iov_len -= left;
    }
  }
  return Status::ok();
}

Status PosixFile::truncate(std::uint64_t size_bytes) {
  const auto size = static_cast<off_t>(size_bytes);
  if (retry_interrupted([&] { return ::ftruncate(descriptor_, size); }) != 0) {
    return failure("cut off", path_, errno);
  }
  return Status::ok();
}

Status PosixFile::sync_data() {
  if (retry_interrupted([&] { return ::fdatasync(descriptor_); }) != 0) {
    return failure("sync", path_, errno);
  }
  return Status::ok();
}

Result<FileInfo> PosixFile::info() const {
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) return failure("inspect", path_, errno);
  return to_info(facts);
}

Result<std::shared_ptr<Mapping>> PosixFile::map(std::size_t size_bytes, bool is_writable) const {
  const int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) return failure("map", path_, errno);
  return std::shared_ptr<Mapping>(std::make_shared<PosixMapping>(data, 0, size_bytes));
}

Result<std::shared_ptr<Mapping>> PosixFile::map_copy(std::uint64_t offset,
                                                     std::size_t size_bytes) const {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto skipped_bytes = static_cast<std::size_t>(offset % page_bytes);
  if (!PosixCopy::reserve()) return failure("map", path_, EMFILE);
  void* data = ::mmap(nullptr, skipped_bytes + size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE,
                      descriptor_, static_cast<off_t>(offset - skipped_bytes));
  if (data == MAP_FAILED) {
    const int error = errno;
    PosixCopy::give_up();
    return failure("map", path_, error);
  }
  return std::shared_ptr<Mapping>(std::make_shared<PosixCopy>(data, skipped_bytes, size_bytes));
}

Result<bool> PosixFile::try_lock() {
  LockedFiles& locked = LockedFiles::instance();
  MutexLock lock(locked.mutex);
  if (retry_interrupted([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) return false;
    return failure("lock", path_, errno);
  }
  locked.files.insert(this);
  return true;
}

// The file stays registered: it may be locked again at any time, and closing an unlocked file in a
// child does no harm.
void PosixFile::unlock() { ::flock(descriptor_, LOCK_UN); }

// Locks one byte far beyond all contents. A lock of this kind belongs to the open file description,
// which mappings keep alive, so it ends when the last of them does.
// Far behind the end of any file.
struct flock range_of_hold(File::Hold hold) {
  struct flock range {};
  range.l_type = static_cast<short>(hold == File::Hold::kShared ? F_RDLCK : F_WRLCK);
  range.l_whence = SEEK_SET;
  range.l_start = off_t{1} << 62;
  range.l_len = 1;
  return range;
}

Result<bool> PosixFile::try_hold(Hold hold) {
#ifdef F_OFD_SETLK
  struct flock range = range_of_hold(hold);
  LockedFiles& locked = LockedFiles::instance();
  MutexLock lock(locked.mutex);
  if (retry_interrupted([&] { return ::fcntl(descriptor_, F_OFD_SETLK, &range); }) == 0) {
    // A shared hold is kept in the child, which goes on reading what it has mapped.
    if (hold == Hold::kExclusive) locked.files.insert(this);
    return true;
  }
  if (errno == EAGAIN || errno == EACCES) return false;
  return failure("hold", path_, errno);
#else
  return File::try_hold(hold);
#endif
}

Result<std::optional<File::Hold>> PosixFile::other_hold() const {
#ifdef F_OFD_GETLK
  struct flock range = range_of_hold(Hold::kExclusive);
  if (retry_interrupted([&] { return ::fcntl(descriptor_, F_OFD_GETLK, &range); }) != 0) {
    return failure("inspect", path_, errno);
  }
  if (range.l_type == F_UNLCK) return std::optional<Hold>();
  return std::optional<Hold>(range.l_type == F_RDLCK ? Hold::kShared : Hold::kExclusive);
#else
  return File::other_hold();
#endif
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    MODCACHE_ASSIGN_OR_RETURN(auto opened, open_file(path, mode));
    return std::unique_ptr<File>(std::make_unique<PosixFile>(path, opened.release()));
  }

  Result<FileInfo> info(const std::string& path) override {
    struct stat facts {};
    if (::stat(path.c_str(), &facts) != 0) return failure("inspect", path, errno);
    return to_info(facts);
  }

  Result<FileInfo> name_info(const std::string& path) override { return fs::name_info(path); }

  std::string resolve(const std::string& path) override {
    char folder[PATH_MAX];
    std::string there = path;
    if (path.empty() || path.front() != '/') {
      if (::getcwd(folder, sizeof folder) == nullptr) return path;
      there = std::string(folder) + '/' + path;
    }
    std::string missing;
    while (::realpath(there.c_str(), folder) == nullptr) {
      if (errno != ENOENT) return path;
      const std::size_t slash = there.rfind('/');
      missing.insert(0, there.substr(slash));
      there.resize(std::max<std::size_t>(slash, 1));  // never empty, as "/" itself always exists
    }
    const std::string found = folder;
    return (found == "/" && !missing.empty() ? "" : found) + missing;
  }

  Status restrict_rights(const std::string& path) override { return fs::restrict_rights(path); }

  Result<std::vector<std::string>> list(const std::string& path) override {
    MODCACHE_ASSIGN_OR_RETURN(auto folder, open_folder(path));
    DIR* directory = ::fdopendir(folder.get());
    if (directory == nullptr) return failure("list", path, errno);
    folder.release();  // closed with `directory`
    std::vector<std::string> names;
    errno = 0;  // readdir returns null at the end as well as on an error
    while (const dirent* entry = ::readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(directory);
    if (error != 0) return failure("list", path, error);
    return names;
  }

  Status make_directories(const std::string& path) override {
    for (std::size_t end = path.find('/', 1); end != std::string::npos;
         end = path.find('/', end + 1)) {
      MODCACHE_RETURN_IF_ERROR(make_directory(path.substr(0, end)));
    }
    return make_directory(path);
  }

  Status rename(const std::string& from, const std::string& to) override {
    MODCACHE_ASSIGN_OR_RETURN(auto old_place, place_of(from));
    MODCACHE_ASSIGN_OR_RETURN(auto place, place_of(to));
    if (::renameat(old_place.folder.get(), old_place.name.c_str(), place.folder.get(),
                   place.name.c_str()) != 0) {
      return failure("rename", from, errno);
    }
    return Status::ok();
  }

  Status remove(const std::string& path) override {
    auto place = place_of(path);
    if (place.is_not_found()) return Status::ok();
    if (!place.is_ok()) return place.status();
    if (::unlinkat(place.value().folder.get(), place.value().name.c_str(), 0) != 0 &&
        errno != ENOENT) {
      return failure("remove", path, errno);
    }
    return Status::ok();
  }

  Status sync_directory(const std::string& path) override {
    MODCACHE_ASSIGN_OR_RETURN(auto folder, open_folder(path));
    if (retry_interrupted([&] { return ::fsync(folder.get()); }) != 0) {
      return failure("sync", path, errno);
    }
    return Status::ok();
  }

  bool is_writable(const std::string& path) override {
    return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
  }

 private:
  static Status make_directory(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Status::ok();
    const int error = errno;
    // Some file systems report another error than EEXIST for a directory that exists.
    struct stat facts {};
    if (::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)) return Status::ok();
    return failure("make directory", path, error);
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static FileSystem* const instance = new PosixFileSystem;
  return *instance;
}

}  // namespace modcache::fs
