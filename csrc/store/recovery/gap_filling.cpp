// SPDX-License-Identifier: Apache-2.0
#include "store/recovery/gap_filling.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/index/segment_rows.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_scan.h"

namespace modcache::store {
namespace {

// Several times as long as the kernel keeps data before it writes it.
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

// Makes a declaration whose description fails its checksum, so that every reader skips it.
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
    MODCACHE_ASSIGN_OR_RETURN(auto is_locked, file.value()->try_lock());
    // A process of this boot writes to it.
    if (!is_locked) return Status::ok();
    auto reader = SegmentReader::open(directory_, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kCorruption) return remove_unbegun(id, *file.value());
    if (!reader.is_ok()) return ignore_missing(reader.status());
    MODCACHE_ASSIGN_OR_RETURN(auto gaps, gaps_of(*reader.value()));
    for (const SegmentGap& gap : gaps) {
      MODCACHE_ASSIGN_OR_RETURN(auto is_damage,
                                leads_into(index_, id, gap.begin, gap.end, confirmed_));
      const bool is_last = &gap == &gaps.back();
      // A gap that is too small for a record can only be filled at the end, where the file may
      // grow.
      const bool has_room = is_last || gap.end - gap.begin >= kLeastRecordBytes;
      if (is_damage || !has_room) continue;
      const std::string bytes = filler(gap, reader.value()->salt());
      MODCACHE_RETURN_IF_ERROR(file.value()->write_at(gap.begin, {{bytes.data(), bytes.size()}}));
    }
    return gaps.empty() ? Status::ok() : file.value()->sync_data();
  }

 private:
  static Status ignore_missing(const Status& status) {
    const bool is_segment = !status.is_not_found() && status.code() != StatusCode::kForeign;
    return is_segment ? status : Status::ok();
  }

  // A segment that was ever synced has a header.
  Status remove_unbegun(std::uint64_t id, const fs::File& file) {
    char bytes[kSegmentHeaderSizeBytes] = {};
    MODCACHE_ASSIGN_OR_RETURN(auto count, file.read_at(0, bytes, sizeof bytes));
    const bool is_unbegun = std::all_of(bytes, bytes + count, [](char byte) { return byte == 0; });
    if (!is_unbegun) return Status::ok();
    MODCACHE_ASSIGN_OR_RETURN(
        auto is_damage,
        leads_into(index_, id, 0, std::numeric_limits<std::int64_t>::max(), confirmed_));
    if (is_damage) return Status::ok();
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
