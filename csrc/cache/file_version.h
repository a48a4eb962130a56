// SPDX-License-Identifier: Apache-2.0
//
// FileVersion: one version of a file that a caller named, told apart from others by one stat; and
// the digest of its bytes, which are read only where nothing is known of this version.
//
// Size, inode and the kernel's own time of the last change say that a file is still the same one,
// except within the tick of the clock in which it was changed: two changes in one tick have one
// time. A version whose tick is over is settled. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cache/cache.h"
#include "cache/mode.h"
#include "fs/file_system.h"

namespace modcache::cache {

struct FileVersion {
  std::string path;  // absolute
  fs::FileInfo info;
  bool is_settled = false;
  std::int64_t seen_ns = 0;  // when this process saw it first, by a clock that only goes forward

  // Takes over from an earlier look when it was seen first. What was seen a tick ago is settled,
  // whatever the file's clock says: its next change has another time. REQUIRES: is_same(earlier).
  void take_over(const FileVersion& earlier);
  // Whether both are of one version, as far as a stat can tell.
  bool is_same(const FileVersion& other) const;
};

// `path` from the root, through this moment's working directory where it is relative.
std::string absolute_path(const std::string& path);

// Looks at the file, without opening it. kNotFound, kIoError; kInvalidArgument for a directory.
Result<FileVersion> look_at(const std::string& path);

// The same, settled where that takes milliseconds: it then waits for them.
Result<FileVersion> look_at_settled(const std::string& path);

// XXH3-128 of the file's bytes, 32 hexadecimal digits: noted in the directory of `cache` as far
// as `mode` allows, or else read. kBusy: it is not this version any more.
Result<std::string> digest_of(const FileVersion& version, Cache& cache, Mode mode);

}  // namespace modcache::cache
