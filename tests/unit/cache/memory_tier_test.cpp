// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_tier.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/one_or_many.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using testing::text_entry;
using testing::text_of;

class MemoryTierTest : public ::testing::Test {
 protected:
  static Settings settings_of(const std::string& directory) {
    Settings settings;
    settings.dir = directory;
    return settings;
  }
  MemoryTier tier(std::int64_t max_age_s = 0) {
    return MemoryTier(store_, directory_tier_, format_, places_, max_age_s);
  }
  // To the directory and to memory, as a cache stores.
  Kept store(MemoryTier& tier, std::string_view key, EntryPtr entry) {
    const Keys keys(context_, key);
    OneOrMany<EntryPtr> entries(1);
    entries[0] = std::move(entry);
    OneOrMany<Kept> kept(1);
    directory_tier_->store(keys, entries, {}, kept);
    tier.store(keys, entries, {}, kept);
    return kept[0];
  }
  std::string find(MemoryTier& tier, std::string_view key) {
    Found found(1);
    tier.find({context_, key}, Access::kRead, OnMiss::kCount, found);
    return text_of(found.entry(0));
  }

  testing::TemporaryDirectory directory_;
  const Settings settings_ = settings_of(directory_ / "cache");
  const testing::TextFormat format_;
  Stats stats_;
  Places places_;
  const std::shared_ptr<MemoryStore> store_ =
      std::make_shared<MemoryStore>(100'000, policy::Kind::kLru, stats_);
  const std::shared_ptr<DiskTier> directory_tier_ =
      std::make_shared<DiskTier>(settings_, format_, stats_);
  const ContextPtr context_ = make_context({});
};

TEST_F(MemoryTierTest, finds_what_was_stored_and_asks_nobody_while_it_is_empty) {
  MemoryTier tier = this->tier();
  EXPECT_EQ(find(tier, "key"), "<missing>");
  EXPECT_TRUE(store(tier, "key", text_entry("text")).is_kept);
  EXPECT_EQ(find(tier, "key"), "text");
  EXPECT_EQ(find(tier, "another"), "<missing>");
}

TEST_F(MemoryTierTest, never_finds_what_another_process_cleared) {
  MemoryTier tier = this->tier();
  store(tier, "cleared", text_entry("one"));
  store(tier, "kept", text_entry("two"));
  ASSERT_TRUE(directory_tier_->flush());
  DiskTier other(settings_, format_, stats_);
  ASSERT_EQ(other.clear({"", "cleared"}), 1);
  EXPECT_EQ(find(tier, "cleared"), "<missing>");
  EXPECT_EQ(find(tier, "kept"), "two");
  EXPECT_EQ(store_->entries(), 1) << "what is outdated goes";
}

TEST_F(MemoryTierTest, never_finds_what_another_process_replaced) {
  MemoryTier tier = this->tier();
  store(tier, "key", text_entry("old"));
  ASSERT_TRUE(directory_tier_->flush());
  const auto other = std::make_shared<DiskTier>(settings_, format_, stats_);
  OneOrMany<EntryPtr> entries(1);
  entries[0] = text_entry("new");
  OneOrMany<Kept> kept(1);
  StoreOptions options;
  options.replaces = true;
  other->store({context_, "key"}, entries, options, kept);
  ASSERT_TRUE(other->flush());
  EXPECT_EQ(find(tier, "key"), "<missing>");
}

TEST_F(MemoryTierTest, an_entry_that_is_too_old_is_not_found_and_goes) {
  MemoryTier tier = this->tier(/*max_age_s=*/5);
  Entry old = *text_entry("old");
  old.stored_at_us = now_us() - 6'000'000;
  store(tier, "old", std::make_shared<const Entry>(std::move(old)));
  store(tier, "new", text_entry("new"));
  EXPECT_EQ(find(tier, "old"), "<missing>");
  EXPECT_EQ(find(tier, "new"), "new");
  EXPECT_EQ(store_->entries(), 1);
}

TEST_F(MemoryTierTest, taking_back_leaves_what_came_since) {
  MemoryTier tier = this->tier();
  const Kept old = store(tier, "key", text_entry("old"));
  store(tier, "key", text_entry("new"));
  tier.take_back({context_, "key"}, {&old, 1});
  EXPECT_EQ(find(tier, "key"), "new");
  const Kept kept = store(tier, "key", text_entry("newest"));
  tier.take_back({context_, "key"}, {&kept, 1});
  EXPECT_EQ(find(tier, "key"), "<missing>");
}

TEST_F(MemoryTierTest, an_entry_goes_to_the_place_of_its_scope) {
  places_.set("", {Place::Kind::kPinned, ""});
  MemoryTier tier = this->tier();
  store(tier, "key", text_entry("text"));
  EXPECT_EQ(find(tier, "key"), "text@pinned");
}

}  // namespace
}  // namespace modcache::cache
