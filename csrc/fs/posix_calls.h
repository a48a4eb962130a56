// SPDX-License-Identifier: Apache-2.0
//
// What posix_*.cpp of this folder share, for them alone: system calls as results.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "fs/file_system.h"

namespace modcache::fs {

// Names the path, and says what could not be done with it.
Status failure(const char* doing, const std::string& path, int error);
FileInfo to_info(const struct stat& facts);

template <typename Call>
auto retry_interrupted(Call call) {
  auto outcome = call();
  while (outcome == -1 && errno == EINTR) outcome = call();
  return outcome;
}

}  // namespace modcache::fs
