// SPDX-License-Identifier: Apache-2.0
//
// System calls as results: shared by posix_*.cpp of this folder, and used by nothing else.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "fs/file_system.h"

namespace modcache::fs {

// Makes a Status of errno `error`. The message is "cannot <doing> '<path>': <reason>".
Status failure(const char* doing, const std::string& path, int error);
FileInfo to_info(const struct stat& facts);

template <typename Call>
auto retry_interrupted(Call call) {
  auto outcome = call();
  while (outcome == -1 && errno == EINTR) outcome = call();
  return outcome;
}

}  // namespace modcache::fs
