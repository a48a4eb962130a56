// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fs/file_system.h"
#include "store/directory.h"

namespace modcache::store {

// The greatest user_version that the first page has in SQLite's write-ahead log at `path`; none
// when the log is not there, is no log or holds no first page. SQLite itself would recover the
// log, and thereby write, before it can tell.
std::optional<std::int64_t> peek_user_version_in_wal(fs::FileSystem& file_system,
                                                     const std::string& path);

// Whether SQLite would read anything of the log. False also where there is none. (Of one that
// begins with garbage, or ends with its header, as one does whose writer was killed then, a
// connection that only reads says SQLITE_PROTOCOL, after ten seconds of trying.)
bool is_wal_read(fs::FileSystem& file_system, const std::string& path);

// The log of a directory's database, for who only reads.
struct LogLook {
  std::uint64_t size_bytes = 0;
  bool is_read = false;  // is_wal_read()
  // One can read along with writers: the log, empty or read, and the memory that goes with it are
  // there.
  bool is_live = false;
};

// A log of which SQLite would read nothing although there is something may be one that a writer is
// about to begin: the directory's lock is then waited for, for `patience_ms` at most.
LogLook look_at_log(const Directory& directory, std::int64_t patience_ms);

}  // namespace modcache::store
