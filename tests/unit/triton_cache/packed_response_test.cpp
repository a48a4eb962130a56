// SPDX-License-Identifier: Apache-2.0
#include "support/packed_response.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "triton_cache/response.h"

namespace modcache::triton_cache {
namespace {

using testing::machine_bytes;
using testing::packed_output;
using testing::packed_response;

// Unpacks as Triton does, which looks at no bound; here each step is checked.
bool triton_stays_inside(std::string_view bytes) {
  std::size_t at = 0;
  const auto take = [&](auto& number) {
    if (at + sizeof number > bytes.size()) return false;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    at += sizeof number;
    return true;
  };
  std::uint32_t outputs = 0;
  if (!take(outputs)) return false;
  for (std::uint32_t i = 0; i < outputs; ++i) {
    std::uint64_t all = 0;
    if (!take(all)) return false;
    for (int text = 0; text < 3; ++text) {
      std::uint32_t size_bytes = 0;
      if (!take(size_bytes) || size_bytes > bytes.size() - at) return false;
      at += size_bytes;
    }
    std::uint64_t size_bytes = 0;
    if (!take(size_bytes) || size_bytes > bytes.size() - at) return false;
    at += static_cast<std::size_t>(size_bytes);
  }
  return true;
}

TEST(PackedResponseTest, has_one_output_or_more) {
  EXPECT_TRUE(is_packed_response(packed_response({"abc"})));
  EXPECT_TRUE(is_packed_response(packed_response({"abc", "", std::string(100'000, 'x')})));
}

TEST(PackedResponseTest, one_without_outputs_is_that_of_a_failure) {
  EXPECT_FALSE(is_packed_response(packed_response({})));
  EXPECT_FALSE(is_packed_response(""));
}

TEST(PackedResponseTest, is_complete_and_has_nothing_behind_it) {
  const std::string whole = packed_response({"abc", "defg"});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(is_packed_response(whole.substr(0, size))) << size;
  }
  EXPECT_FALSE(is_packed_response(whole + '\0'));
}

TEST(PackedResponseTest, sizes_that_overflow_are_refused) {
  for (const std::uint64_t size : {~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    EXPECT_FALSE(is_packed_response(machine_bytes(std::uint32_t{1}) + machine_bytes(size) + "abc"));
  }
  EXPECT_FALSE(is_packed_response(machine_bytes(~std::uint32_t{0}) + packed_output("a")));
}

TEST(PackedResponseTest, whatever_bytes_change_triton_stays_inside_of_what_is_accepted) {
  const std::string whole = packed_response({"abc", "defg"});
  std::minstd_rand random(1);
  int accepted = 0;
  for (int trial = 0; trial < 50'000; ++trial) {
    std::string changed = whole;
    for (unsigned changes = random() % 4; changes-- > 0;) {
      changed[random() % changed.size()] = static_cast<char>(random() % 8);
    }
    if (!is_packed_response(changed)) continue;
    ++accepted;
    ASSERT_TRUE(triton_stays_inside(changed)) << trial;
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace modcache::triton_cache
