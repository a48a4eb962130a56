// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: what its policy is told, and asked. Everything here is a hint: without a policy
// or a shared index nothing is noted, and the segments that were begun first leave first. A lookup
// takes no lock and no system call for it.
#include "store/directory_store.h"

namespace modcache::store {

void DirectoryStore::note_lookup(const Digest128& address, Sequence sequence) {
  if (policy_ == nullptr) return;
  const policy::Tick now = index_->tick();
  policy_->saw(address.high, sequence != 0, now);
  if (sequence == 0) return;
  SharedIndex::Slot slot;
  if (index_->find(address, slot) != SharedIndex::Answer::kFound) return;
  if (slot.sequence == sequence) {
    index_->note_use(address, sequence, policy_->used(slot.usage, now));
  }
}

void DirectoryStore::note_lookups(const std::vector<Digest128>& addresses,
                                  const FoundEntries& found) {
  if (policy_ == nullptr) return;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    note_lookup(addresses[i], found.has(i) ? found.sequence(i) : 0);
  }
}

policy::Usage DirectoryStore::usage_of_new(const Digest128& address) {
  if (policy_ == nullptr) return {};
  return policy_->inserted(address.high, index_->now());
}

bool DirectoryStore::admits(const Digest128& address) {
  return policy_ == nullptr || policy_->admits(address.high, index_->now());
}

void DirectoryStore::tell_policy_sizes() {
  const std::uint64_t entries = index_->entries();
  if (policy_ == nullptr || entries == 0 || budget_.used_bytes() == 0) return;
  const double share =
      static_cast<double>(budget_.budget_bytes()) / static_cast<double>(budget_.used_bytes());
  policy_->measured(entries, static_cast<std::uint64_t>(static_cast<double>(entries) * share));
}

// What a pass evicts by, if anything is known of all entries.
std::optional<std::uint64_t> DirectoryStore::rank_that_stays(std::uint64_t wanted_bytes) {
  if (policy_ == nullptr || !index_->has_all()) return std::nullopt;
  const policy::Tick now = index_->now();
  return rank_above(
      [&](const std::function<void(std::uint32_t, std::uint64_t)>& visit) {
        index_->for_each([&](const SharedIndex::Slot& slot) {
          visit(policy_->rank(slot.usage, now), slot.size_bytes);
        });
      },
      wanted_bytes);
}

// True: the entry stays, and `usage` is what is known of it from now on.
bool DirectoryStore::is_spared(const Digest128& address, Sequence sequence, std::uint64_t rank,
                               policy::Usage& usage) {
  SharedIndex::Slot slot;
  const bool is_known =
      index_->find(address, slot) == SharedIndex::Answer::kFound && slot.sequence == sequence;
  if (is_known) usage = slot.usage;
  if (policy_ == nullptr) return false;
  const policy::Tick now = index_->now();
  if (is_known && policy_->rank(usage, now) >= rank) {
    usage = policy_->spared(usage, now);
    return true;
  }
  policy_->evicted(address.high, usage, now);
  return false;
}

}  // namespace modcache::store
