// SPDX-License-Identifier: Apache-2.0
//
// The real file system. One object serves the whole process; see file_system.h.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "fs/file_system.h"

namespace modcache::fs {

// Never destroyed, so threads may use files while the process exits.
FileSystem& posix_file_system();

// The rest of this header is for posix_file_system.cpp and its tests alone.

// Makes a Status of errno `error`. The message is "cannot <doing> '<path>': <reason>".
Status failure(const char* doing, const std::string& path, int error);
FileInfo to_info(const struct stat& facts);

template <typename Call>
auto retry_interrupted(Call call) {
  auto outcome = call();
  while (outcome == -1 && errno == EINTR) outcome = call();
  return outcome;
}

// Owns a file descriptor and closes it when destroyed.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return number_; }
  int release();

 private:
  int number_ = -1;
};

// A name in an open folder that was reached without following links. The name itself may be that of
// anything, or of nothing.
struct Place {
  Descriptor folder;
  std::string name;
};

// The functions below open what a path names, and nothing that somebody put there instead: they
// follow no link, wait for no pipe and touch no device. All of posix_file_system.cpp opens files
// through them; file_system.h has the contract. They may be called from any thread.

// Opens the folder of `path`. Returns kForeign when a folder on the way is a link. REQUIRES: the
// path has a name after its last slash.
Result<Place> place_of(const std::string& path);
// Opens the folder itself, for reading its names and syncing them.
Result<Descriptor> open_folder(const std::string& path);
// Returns kForeign when the thing at `path` must not be opened in this mode.
Result<Descriptor> open_file(const std::string& path, OpenMode mode);
// See FileSystem::name_info and FileSystem::restrict_rights.
Result<FileInfo> name_info(const std::string& path);
Status restrict_rights(const std::string& path);

}  // namespace modcache::fs
