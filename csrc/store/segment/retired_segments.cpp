// SPDX-License-Identifier: Apache-2.0
#include "store/segment/retired_segments.h"

#include "base/clock.h"

namespace modcache::store {
namespace {

// Idle readers look for retired segments once a second.
constexpr std::int64_t kLeavingNs = 3'000'000'000;

// Returns false when somebody holds the file.
Result<bool> remove_if_free(const Directory& directory, std::uint64_t id, fs::FileInfo& info) {
  fs::FileSystem& file_system = directory.file_system();
  MODCACHE_ASSIGN_OR_RETURN(auto file,
                            file_system.open(directory.retired_path(id), fs::OpenMode::kReadWrite));
  MODCACHE_ASSIGN_OR_RETURN(info, file->info());
  // Nobody begins to read it while it is held exclusively.
  auto is_free = file->try_hold(fs::File::Hold::kExclusive);
  if (is_free.is_ok() && !is_free.value()) return false;
  MODCACHE_RETURN_IF_ERROR(file_system.remove(directory.retired_path(id)));
  return true;
}

}  // namespace

Status retire_segment(const Directory& directory, std::uint64_t id) {
  return directory.file_system().rename(directory.segment_path(id), directory.retired_path(id));
}

Result<RetiredSegments> remove_retired(const Directory& directory) {
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory.retired_segments());
  RetiredSegments retired;
  for (const std::uint64_t id : ids) {
    fs::FileInfo info;
    auto is_removed = remove_if_free(directory, id, info);
    if (is_removed.is_not_found()) continue;  // another process was faster
    if (is_removed.status().code() == StatusCode::kForeign) continue;
    if (!is_removed.is_ok()) return is_removed.status();
    if (is_removed.value()) {
      retired.freed_bytes += info.size_bytes;
      continue;
    }
    retired.held_bytes += info.size_bytes;
    if (now_ns() - info.changed_ns < kLeavingNs) retired.leaving_bytes += info.size_bytes;
  }
  return retired;
}

}  // namespace modcache::store
