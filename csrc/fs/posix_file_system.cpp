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
#include <system_error>
#include <utility>

#include "base/fork.h"
#include "base/process_wide.h"

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

std::int64_t nanoseconds(const struct timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

const char* kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "regular file";
  if (S_ISDIR(mode)) return "directory";
  if (S_ISLNK(mode)) return "symbolic link";
  if (S_ISFIFO(mode)) return "named pipe (FIFO)";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

#ifdef O_PATH
constexpr int kOnTheWay = O_PATH;  // asks for no permission but that of passing through
#else
constexpr int kOnTheWay = O_RDONLY;
#endif
constexpr int kFolder = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// If a pipe or a device takes the file's place after we looked, opening it neither blocks nor makes
// it our terminal. For regular files these flags mean nothing.
constexpr int kFile = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

constexpr mode_t kReadAndWrite = 0666;
constexpr mode_t kWrittenByAll = 0002;

bool is_created(OpenMode mode) {
  return mode == OpenMode::kReadWriteCreate || mode == OpenMode::kCreateExclusive ||
         mode == OpenMode::kCreateToShare;
}

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
    case OpenMode::kReadFollowing: return kFile | O_RDONLY;
    case OpenMode::kReadWrite: return kFile | O_RDWR;
    case OpenMode::kReadWriteCreate: return kFile | O_RDWR | O_CREAT;
    case OpenMode::kCreateExclusive:
    case OpenMode::kCreateToShare: return kFile | O_RDWR | O_CREAT | O_EXCL;
  }
  return kFile;
}

Status check_for(OpenMode mode, const std::string& path, const struct stat& facts) {
  const bool is_only_read = mode == OpenMode::kRead || mode == OpenMode::kReadFollowing;
  return is_only_read ? check_is_file(path, to_info(facts))
                      : check_is_own_file(path, to_info(facts));
}

// The permissions of a new file, before the umask.
mode_t rights_in(const struct stat& folder) {
  return folder.st_mode & kReadAndWrite & ~kWrittenByAll;
}

Result<Descriptor> enter(const Descriptor& folder, const char* name, int access,
                         const std::string& path) {
  const int entered =
      retry_interrupted([&] { return ::openat(folder.get(), name, access | kFolder); });
  if (entered >= 0) return Descriptor(entered);
  const int error = errno;
  // The error does not tell a link from a file or a missing folder.
  struct stat facts {};
  if (::fstatat(folder.get(), name, &facts, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(facts.st_mode)) {
    return Status::foreign("'" + path + "' is a " + to_info(facts).kind + ", not a directory");
  }
  return failure("open", path, error);
}

// Opens one folder after another, from the root or from the working directory. The kernel would
// follow links everywhere but at a path's end, so it is given one name at a time.
Result<Descriptor> enter_all(const std::string& path, std::size_t end, int access_at_end) {
  const bool is_absolute = !path.empty() && path.front() == '/';
  const char* start = is_absolute ? "/" : ".";
  const std::size_t first = path.find_first_not_of('/');
  const bool is_start = first == std::string::npos || first >= end;
  auto folder = enter(Descriptor(AT_FDCWD), start, is_start ? access_at_end : kOnTheWay, path);
  for (std::size_t begin = first; !is_start && begin < end && folder.is_ok();) {
    const std::size_t slash = std::min(path.find('/', begin), end);
    std::size_t next = path.find_first_not_of('/', slash);
    if (next == std::string::npos) next = end;
    folder = enter(folder.value(), path.substr(begin, slash - begin).c_str(),
                   next < end ? kOnTheWay : access_at_end, path.substr(0, slash));
    begin = next;
  }
  return folder;
}

Result<Descriptor> opened(int number, const std::string& path, OpenMode mode) {
  if (number < 0) {
    // A link took the file's place after we looked.
    if (errno == ELOOP) return Status::foreign("'" + path + "' is a symbolic link");
    return failure("open", path, errno);
  }
  Descriptor file(number);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return failure("inspect", path, errno);
  MODCACHE_RETURN_IF_ERROR(check_for(mode, path, facts));
  return file;
}

Result<Descriptor> open_following(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return failure("open", path, errno);
  MODCACHE_RETURN_IF_ERROR(check_is_file(path, to_info(facts)));
  const int flags = flags_of(OpenMode::kReadFollowing);
  return opened(retry_interrupted([&] { return ::open(path.c_str(), flags); }), path,
                OpenMode::kReadFollowing);
}

}  // namespace

FileSystem& posix_file_system() {
  static FileSystem* const instance = new PosixFileSystem;
  return *instance;
}

Status failure(const char* doing, const std::string& path, int error) {
  const std::string message =
      std::string("cannot ") + doing + " '" + path + "': " + std::generic_category().message(error);
  if (error == ENOENT) return Status::not_found(message);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return Status::no_space(message);
  return Status::io_error(message);
}

// Asked for when it is wanted, since each lookup on disk asks for the size of a file.
bool FileInfo::is_own() const { return owner == ::geteuid(); }

FileInfo to_info(const struct stat& facts) {
  FileInfo info;
  info.size_bytes = static_cast<std::uint64_t>(facts.st_size);
  info.device = static_cast<std::uint64_t>(facts.st_dev);
  info.inode = static_cast<std::uint64_t>(facts.st_ino);
  info.link_count = static_cast<std::uint64_t>(facts.st_nlink);
  info.modified_ns = nanoseconds(facts.st_mtim);
  info.changed_ns = nanoseconds(facts.st_ctim);
  info.is_directory = S_ISDIR(facts.st_mode);
  info.is_regular = S_ISREG(facts.st_mode);
  info.owner = facts.st_uid;
  info.permissions = facts.st_mode & 07777;
  info.kind = kind_of(facts.st_mode);
  return info;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

int Descriptor::release() { return std::exchange(number_, -1); }

Result<Place> place_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  MODCACHE_ASSIGN_OR_RETURN(auto folder, enter_all(path, name, kOnTheWay));
  return Place{std::move(folder), path.substr(name)};
}

Result<Descriptor> open_folder(const std::string& path) {
  return enter_all(path, path.size(), O_RDONLY);
}

Result<Descriptor> open_file(const std::string& path, OpenMode mode) {
  if (mode == OpenMode::kReadFollowing) return open_following(path);
  MODCACHE_ASSIGN_OR_RETURN(auto place, place_of(path));
  const int folder = place.folder.get();
  const char* name = place.name.c_str();
  struct stat facts {};
  // Look before opening, as some devices act on being opened.
  const bool is_there = ::fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
  const bool must_be_new = mode == OpenMode::kCreateExclusive || mode == OpenMode::kCreateToShare;
  if (!is_there && !(errno == ENOENT && is_created(mode))) return failure("open", path, errno);
  if (is_there && !must_be_new) MODCACHE_RETURN_IF_ERROR(check_for(mode, path, facts));
  mode_t rights = kReadAndWrite;
  if (is_created(mode) && mode != OpenMode::kCreateToShare) {
    if (::fstat(folder, &facts) != 0) return failure("inspect", path, errno);
    rights = rights_in(facts);
  }
  const int flags = flags_of(mode) | O_NOFOLLOW;
  return opened(retry_interrupted([&] { return ::openat(folder, name, flags, rights); }), path,
                mode);
}

Result<FileInfo> name_info(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return failure("inspect", path, errno);
  return to_info(facts);
}

// Works through the number of an O_PATH descriptor. Closing any other descriptor of the file would
// drop the locks that SQLite has on it in this process.
Status restrict_rights(const std::string& path) {
#ifdef O_PATH
  MODCACHE_ASSIGN_OR_RETURN(auto place, place_of(path));
  struct stat folder {};
  if (::fstat(place.folder.get(), &folder) != 0) return failure("inspect", path, errno);
  const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  const Descriptor file(
      retry_interrupted([&] { return ::openat(place.folder.get(), place.name.c_str(), flags); }));
  if (file.get() < 0) return failure("open", path, errno);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return failure("inspect", path, errno);
  MODCACHE_RETURN_IF_ERROR(check_is_own_file(path, to_info(facts)));
  const mode_t rights = facts.st_mode & 07777;
  const mode_t fewer = rights & rights_in(folder);
  if (fewer == rights) return Status::ok();
  const std::string number = "/proc/self/fd/" + std::to_string(file.get());
  if (::chmod(number.c_str(), fewer) != 0) return failure("restrict", path, errno);
#else
  (void)path;
#endif
  return Status::ok();
}

}  // namespace modcache::fs
