// SPDX-License-Identifier: Apache-2.0
#include "store/usage/usage_tracker.h"

namespace modcache::store {

void UsageTracker::note_lookups(std::span<const Digest128> addresses,
                                std::span<const Sequence> sequences) {
  if (policy_ == nullptr || addresses.empty()) return;
  const auto count = static_cast<std::uint32_t>(addresses.size());
  const policy::Tick first = index_.tick(count) - count + 1;
  const auto at = [first](std::size_t i) { return first + static_cast<policy::Tick>(i); };
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    policy_->saw(addresses[i].high, sequences[i] != 0);
  }
  index_.note_uses(addresses, sequences,
                   [&](std::size_t i, policy::Usage usage) { return policy_->used(usage, at(i)); });
}

policy::Usage UsageTracker::usage_of_new(const Digest128& address) {
  if (policy_ == nullptr) return {};
  return policy_->inserted(address.high, index_.now());
}

bool UsageTracker::admits(const Digest128& address) {
  if (policy_ == nullptr) return true;
  const policy::Tick now = index_.now();
  policy::Usage victim{now};  // where no entry can be read
  std::uint32_t smallest = ~std::uint32_t{0};
  // Another sample at each try, so that a key is not compared with the same few entries forever.
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  index_.sample(address.high ^ (now * kGolden), policy::kSampledEntries,
                [&](const SharedIndex::Slot& slot) {
                  const std::uint32_t rank = policy_->rank(slot.usage, now);
                  if (rank > smallest) return;
                  victim = slot.usage;
                  smallest = rank;
                });
  return policy_->may_replace(victim, address.high, now);
}

void UsageTracker::tell_sizes(std::uint64_t used_bytes, std::uint64_t budget_bytes) {
  const std::uint64_t entries = index_.entries();
  if (policy_ == nullptr || entries == 0 || used_bytes == 0) return;
  const double share = static_cast<double>(budget_bytes) / static_cast<double>(used_bytes);
  policy_->set_capacity(static_cast<std::uint64_t>(static_cast<double>(entries) * share));
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
    usage = policy_->retained(usage, now);
    return true;
  }
  policy_->evicted(address.high, usage);
  return false;
}

}  // namespace modcache::store
