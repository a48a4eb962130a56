// SPDX-License-Identifier: Apache-2.0
//
// Opening what a path names, and nothing that somebody put there instead: no link is followed, no
// pipe waited for, no device touched. All of posix_file_system.cpp goes through here; file_system.h
// has the contract. May be called from any thread.
#pragma once

#include <string>

#include "fs/file_system.h"

namespace modcache::fs {

// Closed when destroyed.
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

// A name in an open folder. The way there had no links; what has the name may be anything.
struct Place {
  Descriptor folder;
  std::string name;
};

// kForeign: a folder on the way is a link. REQUIRES: the path has a name after its last slash.
Result<Place> place_of(const std::string& path);
// The folder itself, for reading its names and for syncing them.
Result<Descriptor> open_folder(const std::string& path);
// kForeign: what stands there is not to be opened in this mode.
Result<Descriptor> open_file(const std::string& path, OpenMode mode);
// See FileSystem::name_info and FileSystem::restrict_rights.
Result<FileInfo> name_info(const std::string& path);
Status restrict_rights(const std::string& path);

}  // namespace modcache::fs
