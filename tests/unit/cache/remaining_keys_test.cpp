// SPDX-License-Identifier: Apache-2.0
#include "cache/remaining_keys.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "support/text_value.h"

namespace modcache::cache {
namespace {

TierFound answer_with(const std::vector<bool>& has) {
  TierFound found;
  found.entries = OneOrMany<HeldEntry>(has.size());
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i]) found.entries[i].entry = testing::text_entry("text");
  }
  return found;
}

TEST(RemainingKeysTest, what_one_tier_lacks_is_asked_of_the_next) {
  const ContextPtr context = make_context({});
  const std::vector<std::string_view> keys = {"a", "b", "c", "d"};
  const OneOrMany<Digest128> addresses = store::addresses_of(context->digest, keys);
  const RemainingKeys all({context, keys, addresses});
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(all.row(2), 2u);

  const RemainingKeys two = all.without(answer_with({true, false, true, false}));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two.row(0), 1u);
  EXPECT_EQ(two.row(1), 3u);
  EXPECT_EQ(two.keys().keys[1], "d");
  EXPECT_EQ(two.keys().addresses[1], addresses[3]);

  const RemainingKeys one = two.without(answer_with({true, false}));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one.row(0), 3u);
  EXPECT_EQ(one.keys().keys[0], "d");
  EXPECT_TRUE(one.without(answer_with({true})).empty());
}

}  // namespace
}  // namespace modcache::cache
