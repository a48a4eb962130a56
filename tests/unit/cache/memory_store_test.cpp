// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_store.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using testing::text_entry;
using testing::text_of;

constexpr std::uint64_t kPlenty = 1'000'000;

ContextPtr scope_named(const std::string& scope) {
  ContextParts parts;
  parts.scope = scope;
  return make_context(parts);
}

class MemoryStoreTest : public ::testing::Test {
 protected:
  void put(const std::string& key, const std::string& text, store::Sequence sequence = 1,
           std::uint64_t removals = 0) {
    put_at(store::address_of(context_->digest, key), context_, key, text, sequence, removals);
  }
  void put_at(const Digest128& address, const ContextPtr& context, const std::string& key,
              const std::string& text, store::Sequence sequence = 1, std::uint64_t removals = 0) {
    tier_.put(address, context, key, {text_entry(text), sequence, removals});
  }
  HeldEntry held(const std::string& key) { return tier_.get({*context_, key}); }
  std::string get(const std::string& key) { return text_of(held(key).entry); }
  std::int64_t evicted() const { return stats_.get(Counter::kEvicted); }

  // What an entry of one-byte key and text takes of the budget.
  std::uint64_t size_of_one() {
    Stats stats;
    MemoryStore tier(kPlenty, policy::Kind::kLru, stats);
    tier.put(store::address_of(context_->digest, "k"), context_, "k", {text_entry("t"), 1, 0});
    return static_cast<std::uint64_t>(tier.size_bytes());
  }

  Stats stats_;
  const ContextPtr context_ = scope_named("scope");
  MemoryStore tier_{kPlenty, policy::Kind::kLru, stats_};
};

TEST_F(MemoryStoreTest, gives_what_was_put_with_its_place_in_the_directory) {
  put("a", "one", 7, 3);
  const HeldEntry found = held("a");
  EXPECT_EQ(text_of(found.entry), "one");
  EXPECT_EQ(found.sequence, 7u);
  EXPECT_EQ(found.removals, 3u);
  EXPECT_EQ(get("b"), "<missing>");
}

TEST_F(MemoryStoreTest, replaces_what_a_key_had_and_counts_that_as_no_eviction) {
  put("a", std::string(1000, 'x'));
  put("a", "y", 2);
  EXPECT_EQ(get("a"), "y");
  EXPECT_EQ(held("a").sequence, 2u);
  EXPECT_EQ(tier_.entries(), 1);
  EXPECT_EQ(tier_.size_bytes(), static_cast<std::int64_t>(size_of_one()));
  EXPECT_EQ(evicted(), 0);
}

TEST_F(MemoryStoreTest, pushes_out_what_was_used_longest_ago) {
  tier_.set_budget(3 * size_of_one());
  put("a", "1");
  put("b", "2");
  put("c", "3");
  EXPECT_EQ(get("a"), "1");  // used: now b is the oldest
  put("d", "4");
  EXPECT_EQ(get("b"), "<missing>");
  put("a", "5");  // replaced: used too
  put("e", "6");
  EXPECT_EQ(get("c"), "<missing>");
  EXPECT_EQ(get("a"), "5");
  EXPECT_EQ(get("d"), "4");
  EXPECT_EQ(get("e"), "6");
  EXPECT_EQ(evicted(), 2);
}

TEST_F(MemoryStoreTest, stays_within_its_budget) {
  const std::uint64_t budget = 10 * size_of_one();
  tier_.set_budget(budget);
  for (int i = 0; i < 200; ++i) {
    put("key " + std::to_string(i), std::string(static_cast<std::size_t>(i) % 50 * 20, 'x'));
    ASSERT_LE(tier_.size_bytes(), static_cast<std::int64_t>(budget));
  }
  EXPECT_EQ(evicted(), 200 - tier_.entries());
}

TEST_F(MemoryStoreTest, counts_text_key_and_signature_towards_the_budget) {
  tier_.put(store::address_of(context_->digest, "key"), context_, "key",
            {text_entry(std::string(1000, 'x'), std::string(100, 's')), 1, 0});
  EXPECT_GE(tier_.size_bytes(), 1000 + 100 + 3);
}

TEST_F(MemoryStoreTest, takes_no_entry_larger_than_the_budget_and_keeps_the_others) {
  tier_.set_budget(3 * size_of_one());
  put("a", "1");
  put("large", std::string(3 * size_of_one(), 'x'));
  EXPECT_EQ(get("large"), "<missing>");
  EXPECT_EQ(get("a"), "1");
  EXPECT_EQ(evicted(), 0);
}

TEST_F(MemoryStoreTest, an_entry_replaced_by_one_that_is_too_large_is_gone_all_the_same) {
  tier_.set_budget(3 * size_of_one());
  put("a", "old");
  put("a", std::string(3 * size_of_one(), 'x'));
  EXPECT_EQ(get("a"), "<missing>");
  EXPECT_EQ(tier_.size_bytes(), 0);
}

TEST_F(MemoryStoreTest, a_smaller_budget_holds_at_once) {
  put("a", "1");
  put("b", "2");
  put("c", "3");
  tier_.set_budget(size_of_one());
  EXPECT_EQ(tier_.entries(), 1);
  EXPECT_EQ(get("c"), "3");
  EXPECT_EQ(evicted(), 2);
}

TEST_F(MemoryStoreTest, a_budget_of_zero_holds_nothing) {
  put("a", "1");
  tier_.set_budget(0);
  put("b", "2");
  EXPECT_EQ(tier_.entries(), 0);
  EXPECT_EQ(tier_.size_bytes(), 0);
}

TEST_F(MemoryStoreTest, what_a_caller_holds_outlives_its_eviction) {
  put("a", "one");
  const EntryPtr entry = held("a").entry;
  tier_.set_budget(0);
  EXPECT_EQ(text_of(entry), "one");
}

// The second key or context was made to have the first one's address.
TEST_F(MemoryStoreTest, two_keys_with_one_address_miss_and_never_get_each_others_value) {
  const Digest128 address = store::address_of(context_->digest, "a");
  const ContextPtr other = scope_named("other");
  put_at(address, context_, "a", "one");
  EXPECT_EQ(tier_.get({*context_, "b", address}).entry, nullptr);
  EXPECT_EQ(tier_.get({*other, "a", address}).entry, nullptr);

  put_at(address, context_, "b", "two");
  EXPECT_EQ(text_of(tier_.get({*context_, "b", address}).entry), "two");
  EXPECT_EQ(tier_.get({*context_, "a", address}).entry, nullptr);
  EXPECT_EQ(tier_.entries(), 1);

  tier_.settle_all({{{*context_, "a", address}}, {{*context_, "a", address}, 1, true}}, 99);
  EXPECT_EQ(text_of(tier_.get({*context_, "b", address}).entry), "two");
  EXPECT_EQ(tier_.get({*context_, "b", address}).removals, 0u);
}

TEST_F(MemoryStoreTest, clears_by_scope_and_by_the_start_of_keys) {
  const ContextPtr other = scope_named("other");
  const auto fill = [&] {
    for (const char* key : {"a1", "a2", "b1"}) {
      put(key, key, 0);
      put_at(store::address_of(other->digest, key), other, key, key, 0);
    }
  };
  fill();
  EXPECT_EQ(tier_.clear({"other", "a"}).entries, 2);
  EXPECT_EQ(tier_.entries(), 4);
  EXPECT_EQ(tier_.get({*other, "a1"}).entry, nullptr);
  EXPECT_EQ(get("a1"), "a1");
  fill();
  EXPECT_EQ(tier_.clear({"other", ""}).entries, 3);
  fill();
  EXPECT_EQ(tier_.clear({"", "b"}).entries, 2);
  EXPECT_EQ(tier_.clear({"scop", ""}).entries, 0);  // a scope is a name, not a prefix
  EXPECT_EQ(tier_.clear({"", "a1 and more"}).entries, 0);
  EXPECT_EQ(tier_.clear({}).entries, 4);
  EXPECT_EQ(tier_.size_bytes(), 0);
}

TEST_F(MemoryStoreTest, clear_tells_what_no_directory_counts) {
  put("here alone", "1", 0);
  put("in the directory too", "2", 5);
  const MemoryStore::Cleared cleared = tier_.clear({});
  EXPECT_EQ(cleared.entries, 2);
  EXPECT_EQ(cleared.only_here, 1);
  EXPECT_EQ(tier_.entries(), 0);
}

TEST_F(MemoryStoreTest, a_forked_child_has_what_its_parent_had) {
  put("a", "1");
  testing::ChildProcess child([&] {
    put("b", "2");
    return get("a") + get("b") == "12" ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(get("b"), "<missing>");
}

TEST_F(MemoryStoreTest, gives_and_takes_many_at_once) {
  const std::vector<std::string_view> keys = {"a", "none", "b"};
  std::vector<Digest128> addresses;
  for (const auto key : keys) addresses.push_back(store::address_of(context_->digest, key));
  std::vector<HeldEntry> held;
  held.assign(keys.size(), {});
  tier_.get_all({*context_, keys, addresses}, held.data());
  ASSERT_EQ(held.size(), 3u);
  for (const auto& one : held) EXPECT_EQ(one.entry, nullptr);

  std::vector<MemoryStore::Put> puts;
  puts.push_back({addresses[0], "a", {text_entry("one"), 7, 3}});
  puts.push_back({addresses[2], "b", {text_entry("two"), 8, 3}});
  puts.push_back({addresses[0], "a", {text_entry("three"), 9, 3}});
  tier_.put_all(context_, std::move(puts));
  EXPECT_EQ(tier_.entries(), 2);
  held.assign(keys.size(), {});
  tier_.get_all({*context_, keys, addresses}, held.data());
  EXPECT_EQ(text_of(held[0].entry), "three");
  EXPECT_EQ(held[0].sequence, 9u);
  EXPECT_EQ(held[1].entry, nullptr);
  EXPECT_EQ(text_of(held[2].entry), "two");
  // Addresses are hashes.
  EXPECT_EQ(tier_.get({*context_, "another", addresses[0]}).entry, nullptr);
}

TEST_F(MemoryStoreTest, a_batch_counts_as_use_and_keeps_to_the_budget) {
  tier_.set_budget(3 * size_of_one());
  put("a", "1");
  put("b", "2");
  put("c", "3");
  (void)held("a");
  std::vector<MemoryStore::Put> puts;
  for (const std::string_view key : {"d", "e"}) {
    puts.push_back({store::address_of(context_->digest, key), key, {text_entry("x"), 1, 0}});
  }
  puts.push_back(
      {store::address_of(context_->digest, "f"), "f", {text_entry(std::string(10000, 'x')), 1, 0}});
  tier_.put_all(context_, std::move(puts));
  EXPECT_EQ(get("a"), "1");
  EXPECT_EQ(get("b"), "<missing>");
  EXPECT_EQ(get("c"), "<missing>");
  EXPECT_EQ(get("d"), "x");
  EXPECT_EQ(get("e"), "x");
  EXPECT_EQ(get("f"), "<missing>") << "larger than the whole budget";
  EXPECT_EQ(evicted(), 2);
}

TEST_F(MemoryStoreTest, settles_what_the_directory_said_of_many) {
  for (const char* key : {"a", "b", "c"}) put(key, key, 7, 3);
  const auto verdict = [&](std::string_view key, store::Sequence sequence, bool is_current) {
    return MemoryStore::Verdict{{*context_, key}, sequence, is_current};
  };
  tier_.settle_all({verdict("a", 7, true), verdict("b", 7, false), verdict("c", 6, true),
                    verdict("none", 7, true)},
                   4);
  EXPECT_EQ(held("a").removals, 4u);
  EXPECT_EQ(get("b"), "<missing>");
  EXPECT_EQ(held("c").removals, 3u) << "replaced meanwhile";
  EXPECT_EQ(tier_.size_bytes(), static_cast<std::int64_t>(2 * size_of_one()));
}

// More than are looked for at once.
TEST_F(MemoryStoreTest, gives_each_of_a_large_batch_its_own) {
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back("key " + std::to_string(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const OneOrMany<Digest128> addresses = store::addresses_of(context_->digest, keys);
  tier_.set_budget(1'000'000);
  for (std::size_t i = 0; i < keys.size(); i += 3) put(names[i], names[i]);
  std::vector<HeldEntry> held(keys.size());
  tier_.get_all({*context_, keys, addresses}, held.data());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(text_of(held[i].entry), i % 3 == 0 ? names[i] : "<missing>") << i;
  }
}

}  // namespace
}  // namespace modcache::cache
