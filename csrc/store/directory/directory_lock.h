// SPDX-License-Identifier: Apache-2.0
//
// DirectoryLock: the lock of a directory. Every process holds it while it commits.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

// Holds the flock until it is destroyed; see fs::lock_within.
class DirectoryLock {
 public:
  // Takes the lock of `file`, which must outlive it. Returns kBusy after `patience_ms`.
  static Result<DirectoryLock> take(fs::File& file, std::int64_t patience_ms);
  DirectoryLock(DirectoryLock&& other) noexcept : file_(other.file_) { other.file_ = nullptr; }
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(fs::File* file) : file_(file) {}
  fs::File* file_;
};

}  // namespace modcache::store
