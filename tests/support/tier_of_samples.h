// SPDX-License-Identifier: Apache-2.0
//
// TierOfSamples: a MemoryStore with room for so many samples, asked as a loader asks it: what is
// missing is computed and put.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/memory_store.h"
#include "support/text_value.h"
#include "support/traces.h"

namespace modcache::testing {

// All of one length, so that all entries have one size.
inline std::string key_of(std::uint32_t sample) {
  char key[32];
  std::snprintf(key, sizeof key, "sample-%010u", sample);
  return key;
}

class TierOfSamples {
 public:
  TierOfSamples(policy::Kind kind, std::size_t room) : tier_(room * size_of_one(), kind, stats_) {}

  cache::MemoryStore& tier() { return tier_; }
  const cache::ContextPtr& context() const { return context_; }
  std::int64_t evicted() const { return stats_.get(cache::Counter::kEvicted); }

  Digest128 address_of(std::uint32_t sample) const {
    return store::address_of(context_->digest, key_of(sample));
  }
  bool has(std::uint32_t sample) { return tier_.holds({*context_, key_of(sample)}); }

  bool find_or_put(std::uint32_t sample) {
    const std::string key = key_of(sample);
    const Digest128 address = store::address_of(context_->digest, key);
    if (tier_.get({*context_, key, address}).entry != nullptr) return true;
    tier_.put(address, context_, key, {entry_, 1, 0});
    return false;
  }

  // The share of lookups that were found.
  double found_of(const Trace& trace) {
    std::size_t found = 0;
    for (const std::uint32_t sample : trace) found += find_or_put(sample) ? 1 : 0;
    return static_cast<double>(found) / static_cast<double>(trace.size());
  }

  // The same in batches, as rows come.
  double found_in_batches(const Trace& trace, std::size_t batch) {
    std::size_t found = 0;
    for (std::size_t begin = 0; begin < trace.size(); begin += batch) {
      const std::size_t end = std::min(trace.size(), begin + batch);
      std::vector<std::string> texts;
      for (std::size_t i = begin; i < end; ++i) texts.push_back(key_of(trace[i]));
      const std::vector<std::string_view> keys(texts.begin(), texts.end());
      std::vector<Digest128> addresses;
      for (const auto key : keys) addresses.push_back(store::address_of(context_->digest, key));
      std::vector<cache::HeldEntry> held;
      held.assign(keys.size(), {});
      tier_.get_all({*context_, keys, addresses}, held.data());
      std::vector<cache::MemoryStore::Put> puts;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (held[i].entry != nullptr) {
          ++found;
        } else {
          puts.push_back({addresses[i], keys[i], {entry_, 1, 0}});
        }
      }
      tier_.put_all(context_, std::move(puts));
    }
    return static_cast<double>(found) / static_cast<double>(trace.size());
  }

 private:
  static cache::ContextPtr make_context() {
    cache::ContextParts parts;
    parts.scope = "samples";
    return cache::make_context(parts);
  }
  std::uint64_t size_of_one() {
    cache::Stats stats;
    cache::MemoryStore tier(1'000'000, policy::Kind::kLru, stats);
    tier.put(address_of(0), context_, key_of(0), {entry_, 1, 0});
    return static_cast<std::uint64_t>(tier.size_bytes());
  }

  const cache::ContextPtr context_ = make_context();
  const cache::EntryPtr entry_ = text_entry("value");
  cache::Stats stats_;
  cache::MemoryStore tier_;
};

}  // namespace modcache::testing
