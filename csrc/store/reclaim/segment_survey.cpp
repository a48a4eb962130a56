// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/segment_survey.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "store/index/database.h"
#include "store/index/index.h"
#include "store/index/segment_rows.h"
#include "store/reclaim/segment_beginning.h"

namespace modcache::store {
namespace {

// Entries of this many times the wanted bytes have a low rank, so that segments are found in which
// much is to go.
constexpr std::uint64_t kLowRanksPerWanted = 4;
// Entries of at least this part of the budget have a low rank, however little is wanted: low ranks
// may be spread over all segments, and all other entries of an emptied segment are written anew.
constexpr std::uint64_t kLowRanksPerBudget = 4;
// Entries of this part of what is to be left never have a low rank. So entries in use stay when
// much has to leave, or when a directory far below its budget is made smaller.
constexpr std::uint64_t kHighRanksPerLeft = 2;

}  // namespace

Result<std::vector<SegmentUse>> SegmentSurvey::candidates(ReclaimPass& pass) {
  MODCACHE_ASSIGN_OR_RETURN(auto uses, sizes());
  usage_.tell_sizes(budget_.used_bytes(), budget_.budget_bytes());
  // Only the database knows how old entries are.
  const bool is_by_ranks =
      attached_.options().max_age_us == 0 && usage_.has_policy() && attached_.index().has_all();
  if (is_by_ranks) {
    measure_ranks(pass, uses);
  } else {
    MODCACHE_RETURN_IF_ERROR(measure_rows(pass, uses));
  }
  std::vector<SegmentUse> list;
  list.reserve(uses.size());
  for (const auto& [id, use] : uses) list.push_back(use);
  return pass.sparing == Sparing::kAllLive ? with_dead_space(std::move(list))
                                           : by_gain(std::move(list));
}

Result<SegmentSurvey::Uses> SegmentSurvey::sizes() const {
  const Directory& directory = attached_.directory();
  MODCACHE_ASSIGN_OR_RETURN(auto ids, directory.segments());
  Uses uses;
  for (const std::uint64_t id : ids) {
    auto info = directory.file_system().name_info(directory.segment_path(id));
    if (!info.is_ok() || !info.value().is_regular) continue;
    SegmentUse& use = uses[id];
    use.id = id;
    use.size_bytes = info.value().size_bytes;
    use.first_sequence = beginning_of(directory, id).first_sequence;
  }
  return uses;
}

void SegmentSurvey::measure_ranks(ReclaimPass& pass, Uses& uses) {
  pass.rank = kAboveAllRanks;
  if (pass.sparing == Sparing::kHighRanks) {
    const std::uint64_t used = budget_.used_bytes();
    const std::uint64_t wanted = used - std::min(used, pass.to_bytes);
    const std::uint64_t low =
        std::max(kLowRanksPerWanted * wanted, budget_.budget_bytes() / kLowRanksPerBudget);
    const std::uint64_t high = std::min(used, pass.to_bytes) / kHighRanksPerLeft;
    pass.rank = rank_that_stays(std::min(low, used - high));
  }
  const SharedIndex& index = attached_.index();
  const policy::Tick now = index.now();
  index.for_each([&](const SharedIndex::Slot& slot) {
    const auto use = uses.find(slot.segment);
    if (use == uses.end()) return;
    use->second.live_bytes += slot.size_bytes;
    if (pass.sparing == Sparing::kNone) return;
    if (usage_.rank(slot.usage, now) >= pass.rank) use->second.kept_bytes += slot.size_bytes;
  });
}

std::uint64_t SegmentSurvey::rank_that_stays(std::uint64_t wanted_bytes) const {
  const SharedIndex& index = attached_.index();
  const policy::Tick now = index.now();
  return rank_above(
      [&](const std::function<void(std::uint32_t, std::uint64_t)>& visit) {
        index.for_each([&](const SharedIndex::Slot& slot) {
          visit(usage_.rank(slot.usage, now), slot.size_bytes);
        });
      },
      wanted_bytes);
}

Status SegmentSurvey::measure_rows(const ReclaimPass& pass, Uses& uses) {
  const Directory& directory = attached_.directory();
  // Another connection, for which nobody waits.
  MODCACHE_ASSIGN_OR_RETURN(auto index,
                            Index::open(directory.file_system(), directory.database_path(),
                                        Database::Mode::kRead, attached_.options().patience_ms));
  MODCACHE_ASSIGN_OR_RETURN(auto live, live_bytes(*index, pass.expired_before_us));
  for (const LiveBytes& segment : live) {
    const auto use = uses.find(segment.segment);
    if (use != uses.end()) use->second.live_bytes = segment.size_bytes;
  }
  return Status::ok();
}

}  // namespace modcache::store
