// SPDX-License-Identifier: Apache-2.0
#include "cache/stats.h"

#include <algorithm>

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
    case Counter::kHitBytes: return "hit_bytes";
    case Counter::kStoredBytes: return "stored_bytes";
    case Counter::kBypassedVerify: return "bypassed_verify";
    case Counter::kVerified: return "verified";
    case Counter::kRemoteStored: return "remote_stored";
    case Counter::kRemoteDropped: return "remote_dropped";
    case Counter::kBypassedRows: return "bypassed_rows";
    case Counter::kBypassedIdentity: return "bypassed_identity";
    case Counter::kCount: break;
  }
  return "";
}

store::DirectoryCounters* Stats::directory() const {
  store::DirectoryCounters* const directory = directory_.load(std::memory_order_acquire);
  return directory != nullptr && may_keep_ && may_keep_() ? directory : nullptr;
}

void Stats::add(std::string_view scope, Counter counter, std::int64_t amount) {
  if (amount == 0) return;
  const Addition one = addition(counter, amount);
  // In mode off no directory counts, and asking for the mode once more would be felt.
  if (counter == Counter::kBypassedOff) return add_here(std::span<const Addition>(&one, 1));
  add(scope, std::span<const Addition>(&one, 1));
}

void Stats::add_here(std::span<const Addition> additions) {
  for (const Addition& one : additions) {
    counters_[one.counter].fetch_add(one.amount, std::memory_order_relaxed);
  }
}

void Stats::add(std::string_view scope, std::span<const Addition> additions) {
  add_here(additions);
  if (auto* const kept = directory()) kept->add(scope, additions);
}

void Stats::add_hits(const store::Context& context, const HitCounts& counts, bool may_keep) {
  if (counts.hits == 0) return;
  const std::array<Addition, 3> additions{addition(counts.tier, counts.hits),
                                          addition(Counter::kSavedUs, counts.saved_us),
                                          addition(Counter::kHitBytes, counts.bytes)};
  add(context, additions, may_keep);
}

void Stats::add(const store::Context& context, std::span<const Addition> additions, bool may_keep) {
  add_here(additions);
  auto* const kept = may_keep ? directory_.load(std::memory_order_acquire) : nullptr;
  if (kept != nullptr) kept->add(context.digest, context.scope, additions);
}

void Stats::reset() {
  for (std::size_t i = 0; i < kCounters; ++i) {
    const std::int64_t counted = counters_[i].exchange(0, std::memory_order_relaxed);
    before_reset_[i].fetch_add(counted, std::memory_order_relaxed);
  }
}

std::int64_t Stats::ever(Counter counter) const {
  const auto i = static_cast<std::size_t>(counter);
  const std::int64_t now = counters_[i].load(std::memory_order_relaxed) +
                           before_reset_[i].load(std::memory_order_relaxed);
  std::int64_t shown = shown_[i].load(std::memory_order_relaxed);
  while (shown < now && !shown_[i].compare_exchange_weak(shown, now, std::memory_order_relaxed)) {
  }
  return std::max(shown, now);
}

}  // namespace modcache::cache
