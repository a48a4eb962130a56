// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: which segments are worth emptying, and which of their clear records must stay.
#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "store/index/tombstone.h"
#include "store/reclaim/reclaim_pass.h"

namespace modcache::store {
namespace {

// Of how much more than is wanted the ranks are low: so segments are found in which much is to go.
constexpr std::uint64_t kLowRanksPerWanted = 4;
// And of no less than this part of the budget, however little is wanted: low ranks may be spread
// over all segments, and of each that is emptied all others are written anew.
constexpr std::uint64_t kLowRanksPerBudget = 4;
// But this part of what is to be left is never low, so that much can be made to leave, or a
// directory far below its budget be made smaller, and what is in use stays.
constexpr std::uint64_t kHighRanksPerLeft = 2;
// A clear record is kept this much longer than the last segment that may hold what it is about:
// what was put before it may have been written a little later, and clocks go wrong.
constexpr std::int64_t kClearsOutliveUs = 3'600'000'000;

// When a segment was begun. Read without its checksum: it only orders segments.
struct Beginning {
  std::uint64_t first_sequence = 0;
  std::int64_t created_at_us = 0;
};

Beginning beginning_of(const Directory& directory, std::uint64_t id) {
  auto file = directory.file_system().open(directory.segment_path(id), fs::OpenMode::kRead);
  if (!file.is_ok()) return {};
  char bytes[kSegmentHeaderSizeBytes + kRecordFixedSizeBytes];
  auto count = file.value()->read_at(0, bytes, sizeof bytes);
  if (!count.is_ok() || count.value() != sizeof bytes) return {};
  auto header = decode_segment_header({bytes, kSegmentHeaderSizeBytes});
  auto first = peek_record_head({bytes + kSegmentHeaderSizeBytes, kRecordFixedSizeBytes});
  if (!header.is_ok() || !first.is_ok()) return {};
  return {first.value().sequence, header.value().created_at_us};
}

}  // namespace

Result<std::vector<SegmentUse>> DirectoryStore::survey(Pass& pass, Sparing sparing) {
  auto ids = directory_.segments();
  if (!ids.is_ok()) return ids.status();
  std::map<std::uint64_t, SegmentUse> uses;
  for (const std::uint64_t id : ids.value()) {
    auto info = directory_.file_system().name_info(directory_.segment_path(id));
    if (!info.is_ok() || !info.value().is_regular) continue;
    SegmentUse& use = uses[id];
    use.id = id;
    use.size_bytes = info.value().size_bytes;
    use.first_sequence = beginning_of(directory_, id).first_sequence;
  }
  tell_policy_sizes();
  // How old entries are, only the database knows.
  const bool is_by_ranks = options_.max_age_us == 0 && policy_ != nullptr && index_->has_all();
  if (is_by_ranks) {
    measure_ranks(pass, sparing, uses);
  } else {
    MODCACHE_RETURN_IF_ERROR(measure_rows(pass, uses));
  }
  std::vector<SegmentUse> list;
  list.reserve(uses.size());
  for (const auto& [id, use] : uses) list.push_back(use);
  return sparing == Sparing::kAllLive ? with_dead_space(std::move(list)) : by_gain(std::move(list));
}

void DirectoryStore::measure_ranks(Pass& pass, Sparing sparing,
                                   std::map<std::uint64_t, SegmentUse>& uses) {
  pass.rank = kAboveAllRanks;
  if (sparing == Sparing::kHighRanks) {
    const std::uint64_t used = budget_.used_bytes();
    const std::uint64_t wanted = used - std::min(used, pass.to_bytes);
    const std::uint64_t low =
        std::max(kLowRanksPerWanted * wanted, budget_.budget_bytes() / kLowRanksPerBudget);
    const std::uint64_t high = std::min(used, pass.to_bytes) / kHighRanksPerLeft;
    pass.rank = rank_that_stays(std::min(low, used - high)).value_or(kAboveAllRanks);
  }
  const policy::Tick now = index_->now();
  index_->for_each([&](const SharedIndex::Slot& slot) {
    const auto use = uses.find(slot.segment);
    if (use == uses.end()) return;
    use->second.live_bytes += slot.size_bytes;
    if (sparing == Sparing::kNone) return;
    if (policy_->rank(slot.usage, now) >= pass.rank) use->second.kept_bytes += slot.size_bytes;
  });
}

Status DirectoryStore::measure_rows(const Pass& pass, std::map<std::uint64_t, SegmentUse>& uses) {
  // Another connection: nobody waits for this one.
  auto index = Index::open(directory_.file_system(), directory_.database_path(),
                           Database::Mode::kRead, options_.patience_ms);
  if (!index.is_ok()) return index.status();
  auto live = index.value()->live_bytes(pass.expired_before_us);
  if (!live.is_ok()) return live.status();
  for (const LiveBytes& segment : live.value()) {
    const auto use = uses.find(segment.segment);
    if (use != uses.end()) use->second.live_bytes = segment.size_bytes;
  }
  return Status::ok();
}

Result<std::vector<std::uint64_t>> DirectoryStore::move_clears(const Victim& victim) {
  std::vector<std::uint64_t> moved_to;
  auto unread = opened_.writer->clears_to_record(victim.id(), victim.is_damaged());
  if (!unread.is_ok()) return unread.status();
  std::vector<Clear> clears = std::move(unread).value();
  const std::size_t most = clears.size() + victim.clears().size();
  clears.reserve(most);  // records borrow from them
  std::vector<NewRecord> records;
  records.reserve(most);
  for (const Clear& clear : clears) records.push_back(tombstone_of(clear));
  for (const Victim::ClearRecord& record : victim.clears()) {
    if (!is_needed(record, victim.id())) continue;
    clears.push_back(clear_of(record.head, record.scope, record.key_prefix));
    records.push_back(tombstone_of(clears.back()));
    records.back().head.stored_at_us = record.head.stored_at_us;
  }
  if (records.empty()) return moved_to;
  auto places = segments_.append(records);
  if (!places.is_ok()) return places.status();
  for (const RecordPlace& place : places.value()) moved_to.push_back(place.segment);
  return moved_to;
}

// Only live records are moved: what a clear is about lies, if anywhere, in a segment that was begun
// before it.
bool DirectoryStore::is_needed(const Victim::ClearRecord& clear, std::uint64_t victim) {
  // What was put before it may still be written, to a segment that is not there yet.
  const std::int64_t outlived_us = clear.head.stored_at_us + kClearsOutliveUs;
  auto ids = directory_.segments();
  if (!ids.is_ok() || opened_.control->bears_last_sequence(clear.head.sequence) ||
      now_us() <= outlived_us) {
    return true;
  }
  return std::any_of(ids.value().begin(), ids.value().end(), [&](std::uint64_t id) {
    if (id == victim) return false;
    const Beginning beginning = beginning_of(directory_, id);
    return beginning.first_sequence <= clear.head.sequence ||
           beginning.created_at_us <= outlived_us;
  });
}

}  // namespace modcache::store
