// SPDX-License-Identifier: Apache-2.0
//
// SegmentSurvey: which segments of a directory are worth emptying. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "store/attached/attached_directory.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaim_pass.h"
#include "store/reclaim/reclaim_plan.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class SegmentSurvey {
 public:
  // All of them must outlive it.
  SegmentSurvey(AttachedDirectory& attached, const DiskBudget& budget, UsageTracker& usage)
      : attached_(attached), budget_(budget), usage_(usage) {}

  // The segments to empty, in this order. Sets the pass's rank.
  Result<std::vector<SegmentUse>> candidates(ReclaimPass& pass);

 private:
  using Uses = std::map<std::uint64_t, SegmentUse>;
  Result<Uses> sizes() const;
  void measure_ranks(ReclaimPass& pass, Uses& uses);
  std::uint64_t rank_that_stays(std::uint64_t wanted_bytes) const;
  Status measure_rows(const ReclaimPass& pass, Uses& uses);

  AttachedDirectory& attached_;
  const DiskBudget& budget_;
  UsageTracker& usage_;
};

}  // namespace modcache::store
