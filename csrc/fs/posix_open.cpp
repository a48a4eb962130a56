// SPDX-License-Identifier: Apache-2.0
#include "fs/posix_open.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fs/posix_calls.h"

namespace modcache::fs {
namespace {

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
