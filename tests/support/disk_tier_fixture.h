// SPDX-License-Identifier: Apache-2.0
//
// A DiskTier with texts for values, in a directory of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/one_or_many.h"
#include "cache/disk_tier.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::testing {

class DiskTierTest : public ::testing::Test {
 protected:
  std::unique_ptr<cache::DiskTier> tier_in(const std::string& directory) {
    cache::Settings settings;
    settings.dir = directory;
    return std::make_unique<cache::DiskTier>(settings, format_, stats_);
  }
  std::unique_ptr<cache::DiskTier> open() { return tier_in(directory_ / "cache"); }
  store::EntryId id(const std::string& key) const { return {*context_, key}; }
  cache::HeldEntry find(cache::DiskTier& tier, const std::string& key, cache::Access access) {
    cache::FoundRows rows = find_rows(tier, {key}, access);
    if (rows.size() == 0 || !rows.has(0)) return {};
    return tier.read(id(key), rows, 0, access, cache::Reading::kToKeep);
  }
  std::string get(cache::DiskTier& tier, const std::string& key,
                  cache::Access access = cache::Access::kWrite) {
    return text_of(find(tier, key, access).entry);
  }
  bool contains(cache::DiskTier& tier, const std::string& key) {
    return tier.are_there({context_, key}).front();
  }
  cache::FoundRows find_rows(cache::DiskTier& tier, const std::vector<std::string_view>& keys,
                             cache::Access access) {
    auto rows = tier.find_rows({context_, keys}, access);
    return rows.has_value() ? *std::move(rows) : cache::FoundRows();
  }
  std::vector<store::Sequence> put_all(cache::DiskTier& tier,
                                       const std::vector<std::string_view>& keys,
                                       const std::vector<cache::EntryPtr>& entries) {
    OneOrMany<cache::EntryPtr> handed(entries.size());
    std::copy(entries.begin(), entries.end(), handed.begin());
    OneOrMany<cache::Kept> kept(keys.size());
    tier.store({context_, keys}, handed, {}, kept);
    std::vector<store::Sequence> sequences;
    for (const cache::Kept& one : kept) sequences.push_back(one.sequence);
    return sequences;
  }
  store::Sequence put(cache::DiskTier& tier, const std::string& key, const cache::EntryPtr& entry) {
    return put_all(tier, {key}, {entry}).front();
  }
  std::vector<bool> are_current(cache::DiskTier& tier, const std::vector<std::string_view>& keys,
                                const std::vector<cache::DiskTier::Known>& known) {
    const OneOrMany<Digest128> addresses = store::addresses_of(context_->digest, keys);
    return tier.are_current({*context_, keys, addresses}, known);
  }
  bool is_current(cache::DiskTier& tier, const std::string& key,
                  const cache::DiskTier::Known& known) {
    return are_current(tier, {key}, {known}).front();
  }
  // Stores one entry so that its bytes are on disk, and lets go of the directory.
  void store(const std::string& key, const std::string& text) {
    const auto tier = open();
    ASSERT_NE(put(*tier, key, text_entry(text)), 0u);
    ASSERT_TRUE(tier->flush());
  }
  void damage(const std::string& text) {
    for (const std::string& path : segment_files(directory_ / "cache")) {
      const auto place = file_bytes(path).find(text);
      if (place == std::string::npos) continue;
      flip_bit(path, place);
      return;
    }
    FAIL() << "'" << text << "' is in no segment";
  }
  std::int64_t count(cache::Counter counter) const { return stats_.get(counter); }

  TemporaryDirectory directory_;
  const TextFormat format_;
  cache::Stats stats_;
  const cache::ContextPtr context_ = cache::make_context({});
};

}  // namespace modcache::testing
