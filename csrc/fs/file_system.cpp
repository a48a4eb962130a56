// SPDX-License-Identifier: Apache-2.0
#include "fs/file_system.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace modcache::fs {

Result<std::shared_ptr<Mapping>> File::map_copy(std::uint64_t, std::size_t) const {
  return Status::io_error("'" + path() + "' cannot be mapped as a copy");
}

Result<bool> File::try_hold(Hold) { return Status::io_error("'" + path() + "' knows no holds"); }
Result<std::optional<File::Hold>> File::other_hold() const {
  return Status::io_error("'" + path() + "' knows no holds");
}

Status check_is_file(const std::string& path, const FileInfo& info) {
  if (info.is_regular) return Status::ok();
  return Status::foreign("'" + path + "' is a " + info.kind + ", not a regular file");
}

// A link count of 0 is fine: the file was unlinked meanwhile, so no other name leads to it.
Status check_is_own_file(const std::string& path, const FileInfo& info) {
  MODCACHE_RETURN_IF_ERROR(check_is_file(path, info));
  if (info.link_count > 1) {
    return Status::foreign("'" + path + "' has " + std::to_string(info.link_count) +
                           " names (hard links), so it is not written: that would change the "
                           "others, too");
  }
  if (!info.is_own()) {
    return Status::foreign("'" + path + "' belongs to another user, so it is not written");
  }
  return Status::ok();
}

// flock has no timed form, so this polls at growing intervals.
Status lock_within(File& file, std::int64_t patience_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(patience_ms);
  auto pause = std::chrono::microseconds(50);
  while (true) {
    MODCACHE_ASSIGN_OR_RETURN(auto is_locked, file.try_lock());
    if (is_locked) return Status::ok();
    if (Clock::now() >= deadline) {
      return Status::busy("another process held '" + file.path() + "' for more than " +
                          std::to_string(patience_ms) + " ms");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(2000));
  }
}

}  // namespace modcache::fs
