// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fs/file_system.h"
#include "store/directory/directory.h"

namespace modcache::store {

// Returns the greatest user_version that the first page has in SQLite's write-ahead log at `path`;
// nothing when there is no log, it is not a log, or it does not hold the first page. SQLite itself
// would have to recover the log before it could tell, and recovery writes.
std::optional<std::int64_t> peek_user_version_in_wal(fs::FileSystem& file_system,
                                                     const std::string& path);

// Returns whether SQLite would read anything of the log; false also where there is none. (For a log
// that begins with garbage, or that ends with its header because its writer was killed there, a
// read-only connection returns SQLITE_PROTOCOL after trying for ten seconds.)
bool is_wal_read(fs::FileSystem& file_system, const std::string& path);

// The state of a database's log, for a process that only reads.
struct LogLook {
  std::uint64_t size_bytes = 0;
  bool is_read = false;  // is_wal_read()
  // A read-only connection can read along with writers: the log, empty or with contents, and its
  // shared memory exist.
  bool is_live = false;
};

// A log that has contents of which SQLite would read nothing may be one that a writer is just
// beginning. So this waits for the directory's lock then, for `patience_ms` at most.
LogLook look_at_log(const Directory& directory, std::int64_t patience_ms);

}  // namespace modcache::store
