// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/gap_filling.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/segment/segment_reader.h"
#include "store/segment/segment_scan.h"

namespace modcache::store {
namespace {

// The kernel keeps nothing for longer before it writes it, some times over.
constexpr std::int64_t kUnwrittenNs = 300'000'000'000;

constexpr std::uint64_t kLeastRecordBytes = align_record(kRecordFixedSizeBytes);

struct Suspect {
  std::uint64_t id = 0;
  std::int64_t modified_ns = 0;
};

std::vector<Suspect> last_written(const Directory& directory) {
  std::vector<Suspect> suspects;
  auto ids = directory.segments();
  if (!ids.is_ok()) return suspects;
  std::int64_t last_ns = 0;
  for (const std::uint64_t id : ids.value()) {
    auto info = directory.file_system().info(directory.segment_path(id));
    if (!info.is_ok()) continue;
    suspects.push_back({id, info.value().modified_ns});
    last_ns = std::max(last_ns, info.value().modified_ns);
  }
  suspects.erase(std::remove_if(suspects.begin(), suspects.end(),
                                [&](const Suspect& suspect) {
                                  return suspect.modified_ns < last_ns - kUnwrittenNs;
                                }),
                 suspects.end());
  return suspects;
}

// A declaration whose description fails its checksum: everybody passes over it.
std::string filler(const SegmentGap& gap, std::uint64_t salt) {
  RecordHead head;
  head.kind = RecordKind::kContext;
  head.payload_size_bytes = gap.end - gap.begin - std::min(gap.end - gap.begin, kLeastRecordBytes);
  head.payload_checksum = std::numeric_limits<std::uint64_t>::max();
  return encode_record_head(head, "", "", salt);
}

class Filler {
 public:
  Filler(const Directory& directory, Index& index, Sequence confirmed)
      : directory_(directory), index_(index), confirmed_(confirmed) {}

  Status fill(std::uint64_t id) {
    fs::FileSystem& file_system = directory_.file_system();
    auto file = file_system.open(directory_.segment_path(id), fs::OpenMode::kReadWrite);
    if (!file.is_ok()) return ignore_missing(file.status());
    auto is_locked = file.value()->try_lock();
    if (!is_locked.is_ok()) return is_locked.status();
    // Somebody of this boot writes there.
    if (!is_locked.value()) return Status::ok();
    auto reader = SegmentReader::open(directory_, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kCorruption) return remove_unbegun(id, *file.value());
    if (!reader.is_ok()) return ignore_missing(reader.status());
    auto gaps = gaps_of(*reader.value());
    if (!gaps.is_ok()) return gaps.status();
    for (const SegmentGap& gap : gaps.value()) {
      auto is_damage = index_.leads_into(id, gap.begin, gap.end, confirmed_);
      if (!is_damage.is_ok()) return is_damage.status();
      const bool is_last = &gap == &gaps.value().back();
      // Too small for a record: only at the end there is room.
      const bool has_room = is_last || gap.end - gap.begin >= kLeastRecordBytes;
      if (is_damage.value() || !has_room) continue;
      const std::string bytes = filler(gap, reader.value()->salt());
      MODCACHE_RETURN_IF_ERROR(file.value()->write_at(gap.begin, {{bytes.data(), bytes.size()}}));
    }
    return gaps.value().empty() ? Status::ok() : file.value()->sync_data();
  }

 private:
  static Status ignore_missing(const Status& status) {
    const bool is_segment = !status.is_not_found() && status.code() != StatusCode::kForeign;
    return is_segment ? status : Status::ok();
  }

  // What is synced has a header.
  Status remove_unbegun(std::uint64_t id, const fs::File& file) {
    char bytes[kSegmentHeaderSizeBytes] = {};
    auto count = file.read_at(0, bytes, sizeof bytes);
    if (!count.is_ok()) return count.status();
    const bool is_unbegun =
        std::all_of(bytes, bytes + count.value(), [](char byte) { return byte == 0; });
    if (!is_unbegun) return Status::ok();
    auto is_damage = index_.leads_into(id, 0, std::numeric_limits<std::int64_t>::max(), confirmed_);
    if (!is_damage.is_ok()) return is_damage.status();
    if (is_damage.value()) return Status::ok();
    return directory_.file_system().remove(directory_.segment_path(id));
  }

  const Directory& directory_;
  Index& index_;
  const Sequence confirmed_;
};

}  // namespace

Status fill_gaps(const Directory& directory, Index& index, Sequence confirmed) {
  Filler filler(directory, index, confirmed);
  for (const Suspect& suspect : last_written(directory)) {
    MODCACHE_RETURN_IF_ERROR(filler.fill(suspect.id));
  }
  return Status::ok();
}

}  // namespace modcache::store
