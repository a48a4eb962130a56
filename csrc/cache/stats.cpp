// SPDX-License-Identifier: Apache-2.0
#include "cache/stats.h"

namespace modcache::cache {

std::string_view counter_name(Counter counter) {
  switch (counter) {
    case Counter::kHitsMemory: return "hits_memory";
    case Counter::kHitsDisk: return "hits_disk";
    case Counter::kHitsRemote: return "hits_remote";
    case Counter::kMisses: return "misses";
    case Counter::kStored: return "stored";
    case Counter::kBypassedOff: return "bypassed_off";
    case Counter::kBypassedGrad: return "bypassed_grad";
    case Counter::kBypassedImpure: return "bypassed_impure";
    case Counter::kBypassedType: return "bypassed_type";
    case Counter::kKeyConflicts: return "key_conflicts";
    case Counter::kVerifyDifferences: return "verify_differences";
    case Counter::kEvicted: return "evicted";
    case Counter::kNotKept: return "not_kept";
    case Counter::kCorrupt: return "corrupt";
    case Counter::kErrors: return "errors";
    case Counter::kRunUs: return "run_us";
    case Counter::kSavedUs: return "saved_us";
    case Counter::kCount: break;
  }
  return "";
}

void Stats::reset() {
  for (auto& counter : counters_) counter.store(0, std::memory_order_relaxed);
}

}  // namespace modcache::cache
