// SPDX-License-Identifier: Apache-2.0
#include "cache/entry_header.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace modcache::cache {
namespace {

TEST(EntryHeaderTest, gives_back_both_parts) {
  for (const std::string& signature :
       {std::string(), std::string("float32[2]"), std::string(70000, 's')}) {
    const std::string header = pack_header(signature, "value header");
    std::string_view signature_again;
    std::string_view value_header;
    ASSERT_TRUE(unpack_header(header, signature_again, value_header));
    EXPECT_EQ(signature_again, signature);
    EXPECT_EQ(value_header, "value header");
  }
}

TEST(EntryHeaderTest, refuses_what_is_too_short) {
  const std::string header = pack_header("float32[2]", "");
  std::string_view signature;
  std::string_view value_header;
  for (std::size_t size = 0; size < header.size(); ++size) {
    EXPECT_FALSE(unpack_header(std::string_view(header).substr(0, size), signature, value_header));
  }
}

}  // namespace
}  // namespace modcache::cache
