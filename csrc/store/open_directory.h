// SPDX-License-Identifier: Apache-2.0
//
// Opening a directory: creating what is missing, rebuilding what is broken, falling back to
// reading where nothing can be written.
#pragma once

#include <cstdint>
#include <memory>

#include "fs/file_system.h"
#include "store/control/control_page.h"
#include "store/directory.h"
#include "store/index/index.h"
#include "store/store.h"

namespace modcache::store {

// The flock that a writer holds; see fs::lock_within.
class DirectoryLock {
 public:
  // kBusy after `patience_ms`.
  static Result<DirectoryLock> take(fs::File& file, std::int64_t patience_ms);
  DirectoryLock(DirectoryLock&& other) noexcept : file_(other.file_) { other.file_ = nullptr; }
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(fs::File* file) : file_(file) {}
  fs::File* file_;
};

// What a Store works with.
struct OpenedDirectory {
  std::unique_ptr<fs::File> lock_file;   // null: reading only
  std::unique_ptr<ControlPage> control;  // null: reading only, and there is none
  std::unique_ptr<Index> reader;         // for lookups
  std::unique_ptr<Index> writer;         // null: reading only
  fs::FileInfo database;                 // which file the indexes have open
  std::uint64_t epoch = 0;
  // The reader sees what was there when it was opened, and nothing that comes later: the log had
  // this size then.
  bool is_snapshot = false;
  std::uint64_t log_size_bytes = 0;
};

Result<OpenedDirectory> open_directory(const Directory& directory, const StoreOptions& options);

}  // namespace modcache::store
