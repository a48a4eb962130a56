// SPDX-License-Identifier: Apache-2.0
//
// UsageTracker: what the policy of a directory is told of entries, and what it is asked. All of it
// is a hint: without a policy or a shared index nothing is noted, and the segments that were begun
// first leave first. A lookup, of however many keys, takes one lock and no system call for it.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/hash.h"
#include "policy/policy.h"
#include "store/entry/entry_id.h"
#include "store/shared_index/shared_index.h"

namespace modcache::store {

class UsageTracker {
 public:
  explicit UsageTracker(SharedIndex& index) : index_(index) {}

  // REQUIRES: no other thread uses this object yet.
  void set_policy(std::unique_ptr<policy::Policy> policy) { policy_ = std::move(policy); }
  bool has_policy() const { return policy_ != nullptr; }

  // Notes one lookup of each address. Sequence 0: the entry was not found.
  void note_lookups(std::span<const Digest128> addresses, std::span<const Sequence> sequences);
  // The usage that a new entry begins with.
  policy::Usage usage_of_new(const Digest128& address);
  // Returns whether others may be evicted from a full directory for this new entry. Compares it
  // with a sample of the entries.
  bool admits(const Digest128& address);
  // Says how much of its budget the directory uses.
  void tell_sizes(std::uint64_t used_bytes, std::uint64_t budget_bytes);

  // REQUIRES: has_policy().
  std::uint32_t rank(policy::Usage usage, policy::Tick now) const {
    return policy_->rank(usage, now);
  }
  // True: the entry has at least this rank, so it stays, and `usage` is its usage from now on. Else
  // the policy takes it as evicted.
  bool is_spared(const Digest128& address, Sequence sequence, std::uint64_t rank,
                 policy::Usage& usage);

 private:
  SharedIndex& index_;
  std::unique_ptr<policy::Policy> policy_;  // null: there is none
};

}  // namespace modcache::store
