// SPDX-License-Identifier: Apache-2.0
//
// SegmentEmptier: empties one segment. Entries that stay are written anew and committed, a step at
// a time; then the old segment is gone (retired_segments.h). A process that dies in between leaves
// a segment with more dead space in it than before, and nothing else. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaim_pass.h"
#include "store/reclaim/room_requests.h"
#include "store/reclaim/victim.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class SegmentEmptier {
 public:
  // All of them must outlive it. It gives up when `requests` are stopped.
  SegmentEmptier(AttachedDirectory& attached, Committer& committer, DiskBudget& budget,
                 UsageTracker& usage, const RoomRequests& requests)
      : attached_(attached),
        committer_(committer),
        budget_(budget),
        usage_(usage),
        requests_(requests) {}

  // kBusy: a process writes there, or the store closes. kNotFound: the segment is gone already.
  // kNoSpace: there is no room for what stays. kUnsupportedVersion: it is of another version.
  Status empty(ReclaimPass& pass, std::uint64_t segment);

 private:
  struct Step;

  Status settle(ReclaimPass& pass, Victim& victim, const std::vector<Victim::Record>& records);
  Status judge(ReclaimPass& pass, Victim& victim, const std::vector<Victim::Record>& records,
               Step& step);
  bool stays(const ReclaimPass& pass, const Victim::Record& record, policy::Usage& usage);
  Status commit(ReclaimPass& pass, const Victim& victim, const Step& step)
      MODCACHE_REQUIRES(committer_.mutex());
  Status finish(ReclaimPass& pass, const Victim& victim);
  Status forget(ReclaimPass& pass, const Victim& victim) MODCACHE_REQUIRES(committer_.mutex());
  Result<std::vector<std::uint64_t>> move_clears(const Victim& victim)
      MODCACHE_REQUIRES(committer_.mutex());
  bool is_needed(const Victim::ClearRecord& clear, std::uint64_t victim);

  AttachedDirectory& attached_;
  Committer& committer_;
  DiskBudget& budget_;
  UsageTracker& usage_;
  const RoomRequests& requests_;
};

}  // namespace modcache::store
