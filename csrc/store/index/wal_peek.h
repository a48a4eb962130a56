// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fs/file_system.h"

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

}  // namespace modcache::store
