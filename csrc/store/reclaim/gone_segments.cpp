// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/gone_segments.h"

#include "base/clock.h"

namespace modcache::store {
namespace {

// Readers look for what is gone once a second when they are idle.
constexpr std::int64_t kLeavingNs = 3'000'000'000;

// False: somebody holds it.
Result<bool> remove_if_free(const Directory& directory, std::uint64_t id, fs::FileInfo& info) {
  fs::FileSystem& file_system = directory.file_system();
  auto file = file_system.open(directory.gone_path(id), fs::OpenMode::kReadWrite);
  if (!file.is_ok()) return file.status();
  auto facts = file.value()->info();
  if (!facts.is_ok()) return facts.status();
  info = facts.value();
  // While it is held exclusively nobody begins to read it.
  auto is_free = file.value()->try_hold(fs::File::Hold::kExclusive);
  if (is_free.is_ok() && !is_free.value()) return false;
  MODCACHE_RETURN_IF_ERROR(file_system.remove(directory.gone_path(id)));
  return true;
}

}  // namespace

Status make_gone(const Directory& directory, std::uint64_t id) {
  return directory.file_system().rename(directory.segment_path(id), directory.gone_path(id));
}

Result<GoneSegments> remove_gone(const Directory& directory) {
  auto ids = directory.gone_segments();
  if (!ids.is_ok()) return ids.status();
  GoneSegments gone;
  for (const std::uint64_t id : ids.value()) {
    fs::FileInfo info;
    auto is_removed = remove_if_free(directory, id, info);
    if (is_removed.is_not_found()) continue;  // another process was quicker
    if (is_removed.status().code() == StatusCode::kForeign) continue;
    if (!is_removed.is_ok()) return is_removed.status();
    if (is_removed.value()) {
      gone.freed_bytes += info.size_bytes;
      continue;
    }
    gone.held_bytes += info.size_bytes;
    if (now_ns() - info.changed_ns < kLeavingNs) gone.leaving_bytes += info.size_bytes;
  }
  return gone;
}

}  // namespace modcache::store
