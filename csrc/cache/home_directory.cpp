// SPDX-License-Identifier: Apache-2.0
#include "cache/home_directory.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

namespace modcache::cache {
namespace {

// Returns the home directory of a user; of this process's user if `user` is empty. Empty: there is
// none.
std::string home_directory(const std::string& user) {
  const char* home = std::getenv("HOME");
  if (user.empty() && home != nullptr && home[0] != '\0') return home;
  std::vector<char> buffer(16'384);
  struct passwd entry {};
  struct passwd* found = nullptr;
  int failure = 0;
  do {
    failure = user.empty()
                  ? ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found)
                  : ::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (failure == ERANGE) buffer.resize(2 * buffer.size());
  } while (failure == EINTR || failure == ERANGE);
  return found != nullptr && found->pw_dir != nullptr ? std::string(found->pw_dir) : std::string();
}

}  // namespace

Result<std::string> expand_home(std::string_view path) {
  if (path.empty() || path.front() != '~') return std::string(path);
  const std::size_t size = std::min(path.find('/'), path.size());
  const std::string user(path.substr(1, size - 1));
  const std::string home = home_directory(user);
  if (!home.empty()) return home + std::string(path.substr(size));
  return Status::invalid_argument(
      "option 'dir' is '" + std::string(path) + "', but " +
      (user.empty() ? "this user has no home directory" : "there is no user '" + user + "'") +
      "; './" + std::string(path) + "' is a directory of that name");
}

}  // namespace modcache::cache
