// SPDX-License-Identifier: Apache-2.0
//
// A stranger who can write in a cache directory: puts something else where a file was, and has a
// file and a folder outside that must stay as they are.
#pragma once

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

enum class Thing {
  kPipe,
  kDirectory,
  kDevice,
  kSocket,
  kLink,
  kDanglingLink,
  kLinkToFolder,
  kHardLink
};

inline std::string name_of(Thing thing) {
  switch (thing) {
    case Thing::kPipe: return "pipe";
    case Thing::kDirectory: return "directory";
    case Thing::kDevice: return "device";
    case Thing::kSocket: return "socket";
    case Thing::kLink: return "link";
    case Thing::kDanglingLink: return "dangling_link";
    case Thing::kLinkToFolder: return "link_to_folder";
    case Thing::kHardLink: return "hard_link";
  }
  return "";
}

class Stranger {
 public:
  Stranger() {
    std::filesystem::create_directory(folder());
    std::ofstream(file()) << std::string(100'000, 'x');
    std::ofstream(folder() + "/file") << "in the folder";
    before_ = all_bytes(outside_.path());
  }

  // False: this user cannot make such a thing (a device), or it would be the file itself.
  bool put(Thing thing, const std::string& path) {
    std::filesystem::remove_all(path);
    switch (thing) {
      case Thing::kPipe: return ::mkfifo(path.c_str(), 0666) == 0;
      case Thing::kDirectory: return std::filesystem::create_directory(path);
      case Thing::kDevice: return ::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0;
      case Thing::kSocket: return put_socket(path);
      case Thing::kLink: return ::symlink(file().c_str(), path.c_str()) == 0;
      case Thing::kDanglingLink: return ::symlink((outside_ / "gone").c_str(), path.c_str()) == 0;
      case Thing::kLinkToFolder: return ::symlink(folder().c_str(), path.c_str()) == 0;
      case Thing::kHardLink: return ::link(file().c_str(), path.c_str()) == 0;
    }
    return false;
  }

  std::string file() const { return outside_ / "file"; }
  std::string folder() const { return outside_ / "folder"; }
  bool is_untouched() const { return all_bytes(outside_.path()) == before_; }

 private:
  // A socket's path is short, so it is made elsewhere.
  bool put_socket(const std::string& path) const {
    const std::string made = outside_ / "socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, made.c_str(), sizeof address.sun_path - 1);
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool is_bound =
        ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(descriptor);
    return is_bound && ::rename(made.c_str(), path.c_str()) == 0;
  }

  TemporaryDirectory outside_;
  std::map<std::string, std::string> before_;
};

}  // namespace modcache::testing
