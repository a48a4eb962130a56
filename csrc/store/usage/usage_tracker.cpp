// SPDX-License-Identifier: Apache-2.0
#include "store/usage/usage_tracker.h"

namespace modcache::store {

void UsageTracker::note_lookup(const Digest128& address, Sequence sequence) {
  if (policy_ == nullptr) return;
  const policy::Tick now = index_.tick();
  policy_->saw(address.high, sequence != 0, now);
  if (sequence == 0) return;
  SharedIndex::Slot slot;
  if (index_.find(address, slot) != SharedIndex::Answer::kFound) return;
  if (slot.sequence == sequence) {
    index_.note_use(address, sequence, policy_->used(slot.usage, now));
  }
}

policy::Usage UsageTracker::usage_of_new(const Digest128& address) {
  if (policy_ == nullptr) return {};
  return policy_->inserted(address.high, index_.now());
}

bool UsageTracker::admits(const Digest128& address) {
  return policy_ == nullptr || policy_->admits(address.high, index_.now());
}

void UsageTracker::tell_sizes(std::uint64_t used_bytes, std::uint64_t budget_bytes) {
  const std::uint64_t entries = index_.entries();
  if (policy_ == nullptr || entries == 0 || used_bytes == 0) return;
  const double share = static_cast<double>(budget_bytes) / static_cast<double>(used_bytes);
  policy_->measured(entries, static_cast<std::uint64_t>(static_cast<double>(entries) * share));
}

bool UsageTracker::is_spared(const Digest128& address, Sequence sequence, std::uint64_t rank,
                             policy::Usage& usage) {
  SharedIndex::Slot slot;
  const bool is_known =
      index_.find(address, slot) == SharedIndex::Answer::kFound && slot.sequence == sequence;
  if (is_known) usage = slot.usage;
  if (policy_ == nullptr) return false;
  const policy::Tick now = index_.now();
  if (is_known && policy_->rank(usage, now) >= rank) {
    usage = policy_->spared(usage, now);
    return true;
  }
  policy_->evicted(address.high, usage, now);
  return false;
}

}  // namespace modcache::store
