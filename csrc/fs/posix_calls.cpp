// SPDX-License-Identifier: Apache-2.0
#include "fs/posix_calls.h"

#include <unistd.h>

#include <system_error>

namespace modcache::fs {
namespace {

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

}  // namespace

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

}  // namespace modcache::fs
