// SPDX-License-Identifier: Apache-2.0
//
// Opens a directory: creates what is missing, rebuilds what is broken, and falls back to reading
// where nothing can be written.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/entry/options.h"
#include "store/index/index.h"

namespace modcache::store {

// The open files of a Store.
struct OpenedDirectory {
  std::unique_ptr<fs::File> lock_file;   // null: read-only
  std::unique_ptr<ControlPage> control;  // null: read-only, and there is no page
  std::unique_ptr<Index> reader;         // for lookups
  std::unique_ptr<Index> writer;         // null: read-only
  fs::FileInfo database;                 // identifies the file that the indexes have open
  std::uint64_t epoch = 0;
  // The reader sees the state at the time of opening, and no later commit. The log had this size
  // then.
  bool is_snapshot = false;
  std::uint64_t log_size_bytes = 0;
};

// Opens the directory, writing only where options.writable and the permissions allow it. kNotFound:
// it does not exist, and may not be created. kInvalidArgument: it is a file. kForeign: a file that
// is needed is not ours. kUnsupportedVersion: it is of another version; no byte was changed.
// kBusy: another process held the lock for options.patience_ms.
Result<OpenedDirectory> open_directory(const Directory& directory, const StoreOptions& options);

}  // namespace modcache::store
