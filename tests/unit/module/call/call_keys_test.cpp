// SPDX-License-Identifier: Apache-2.0
#include "module/call/call_keys.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace modcache::module {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(CallKeysTest, distinct_keys_stand_in_the_order_of_their_first_rows) {
  const CallKeys keys({"b", "a", "b", "c", "a", "b"});
  EXPECT_EQ(keys.rows(), 6u);
  EXPECT_THAT(keys.distinct(), ElementsAre("b", "a", "c"));
  EXPECT_EQ(keys.first_row(0), 0);
  EXPECT_EQ(keys.first_row(1), 1);
  EXPECT_EQ(keys.first_row(2), 3);
  EXPECT_THAT(keys.repeated(), ElementsAre(Pair(2, 0), Pair(4, 1), Pair(5, 0)));
}

TEST(CallKeysTest, a_batch_without_rows_has_no_keys) {
  const CallKeys keys{std::vector<std::string_view>{}};
  EXPECT_EQ(keys.rows(), 0u);
  EXPECT_THAT(keys.distinct(), IsEmpty());
  EXPECT_EQ(CallKeys::of_ids(nullptr, 0).rows(), 0u);
}

TEST(CallKeysTest, owns_its_text_also_when_it_was_moved) {
  std::string text = "key";
  CallKeys first({text, "other"});
  text = "xxx";
  const CallKeys keys(std::move(first));
  EXPECT_THAT(keys.distinct(), ElementsAre("key", "other"));
}

TEST(CallKeysTest, keys_are_told_apart_by_every_byte) {
  const std::string_view with_zero("a\0b", 3);
  const CallKeys keys({"a", with_zero, "ab", "a\xcc\x81", "\xc3\xa1", "A"});
  EXPECT_EQ(keys.distinct().size(), 6u);
  EXPECT_EQ(keys.distinct()[1], with_zero);
}

TEST(CallKeysTest, an_id_is_the_key_that_its_decimal_text_is) {
  const std::vector<std::int64_t> ids{7,
                                      0,
                                      -1,
                                      10,
                                      std::numeric_limits<std::int64_t>::max(),
                                      std::numeric_limits<std::int64_t>::min(),
                                      7};
  const CallKeys keys = CallKeys::of_ids(ids.data(), ids.size());
  EXPECT_THAT(keys.distinct(),
              ElementsAre("7", "0", "-1", "10", "9223372036854775807", "-9223372036854775808"));
  EXPECT_THAT(keys.repeated(), ElementsAre(Pair(6, 0)));
}

TEST(CallKeysTest, large_batches_keep_every_row) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 10'000; ++i) ids.push_back(i % 3'000 - 1'500);
  const CallKeys keys = CallKeys::of_ids(ids.data(), ids.size());
  ASSERT_EQ(keys.distinct().size(), 3'000u);
  ASSERT_EQ(keys.repeated().size(), 7'000u);
  for (std::size_t i = 0; i < 3'000; ++i) {
    EXPECT_EQ(keys.distinct()[i], std::to_string(ids[i]));
    EXPECT_EQ(keys.first_row(i), static_cast<std::int64_t>(i));
  }
  for (const auto& [row, same_as] : keys.repeated()) EXPECT_EQ(ids[row], ids[same_as]);
}

}  // namespace
}  // namespace modcache::module
