// SPDX-License-Identifier: Apache-2.0
#include "cache/context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace modcache::cache {
namespace {

ContextParts parts(std::string_view name_space, std::string_view scope, std::string_view method,
                   std::string_view arguments = "", std::string_view autocast = "",
                   Form form = Form::kWhole) {
  return {name_space, scope, method, form, arguments, autocast};
}

TEST(ContextTest, equal_parts_give_equal_contexts) {
  const ContextPtr first = make_context(parts("n", "s", "forward", "a", "c"));
  (void)make_context(parts("n", "other", "forward"));
  const ContextPtr second = make_context(parts("n", "s", "forward", "a", "c"));
  EXPECT_EQ(first->digest, second->digest);
  EXPECT_EQ(first->description, second->description);
  EXPECT_EQ(first->scope, "s");
}

TEST(ContextTest, the_parts_asked_for_last_are_not_built_again) {
  const ContextPtr first = make_context(parts("n", "s", "forward"));
  EXPECT_EQ(make_context(parts("n", "s", "forward")), first);
}

TEST(ContextTest, the_parts_of_a_description_are_found_again) {
  const ContextParts given = parts("n,1:", "s\n", "forward", "2:ab,", "float16", Form::kRow);
  const ContextPtr context = make_context(given);
  ContextParts found;
  ASSERT_TRUE(unpack_context(context->description, found));
  EXPECT_EQ(make_context(found)->description, context->description);
  EXPECT_EQ(found.scope, "s\n");
  EXPECT_EQ(found.form, Form::kRow);
}

TEST(ContextTest, other_text_is_no_description) {
  const std::string whole = make_context(parts("n", "s", "forward"))->description;
  ContextParts found;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(unpack_context(whole.substr(0, size), found)) << size;
  }
  for (const char* text : {"the golden context", "9:x,", "99999999999999999999:x,", "-1:x,",
                           "18446744073709551615:x,", "1:n,1:s,1:mx0:,0:,", "1:n1:s,1:m,w0:,0:,"}) {
    EXPECT_FALSE(unpack_context(text, found)) << text;
  }
  EXPECT_FALSE(unpack_context(whole + "x", found));
}

// Every way to spread a few pieces, some of which look like the description's own punctuation.
TEST(ContextTest, no_two_lists_of_parts_share_a_description_or_a_digest) {
  const std::vector<std::string> pieces{"",
                                        "a",
                                        "aa",
                                        ",",
                                        ":",
                                        "1:",
                                        "0:,",
                                        "1:a,",
                                        "w",
                                        "0:,w0:,",
                                        "r",
                                        "a,1:a",
                                        std::string(1, '\0')};
  std::set<std::string> descriptions;
  std::set<std::string> digests;
  std::size_t count = 0;
  const auto add = [&](const ContextParts& given) {
    const ContextPtr context = make_context(given);
    descriptions.insert(context->description);
    digests.insert(context->digest.bytes());
    ++count;
  };
  for (const auto& a : pieces) {
    for (const auto& b : pieces) {
      for (const auto& c : pieces) {
        add(parts(a, b, c));
        add(parts(a, b, c, "", "", Form::kRow));
        if (!c.empty()) {
          add(parts(a, b, "m", c));
          add(parts(a, b, "m", "", c));
        }
      }
    }
  }
  EXPECT_EQ(descriptions.size(), count);
  EXPECT_EQ(digests.size(), count);
}

class AddressTest : public ::testing::Test {
 protected:
  static std::string address(const ContextPtr& context, const std::string& key) {
    return address_of({*context, key}).bytes();
  }
  const ContextPtr context_ = make_context(parts("", "scope", "forward"));
  const ContextPtr other_ = make_context(parts("", "other", "forward"));
};

TEST_F(AddressTest, depends_on_context_and_key_alone) {
  const ContextPtr same = std::make_shared<const store::Context>(*context_);
  EXPECT_EQ(address(context_, "key"), address(same, "key"));
  EXPECT_NE(address(context_, "key"), address(other_, "key"));
  EXPECT_NE(address(context_, "key"), address(context_, "kez"));
}

TEST_F(AddressTest, takes_in_every_byte_of_keys_of_any_length) {
  std::set<std::string> addresses;
  std::size_t count = 0;
  for (const std::size_t size : {1u, 16u, 239u, 240u, 241u, 255u, 256u, 257u, 1000u, 100'000u}) {
    const std::string key(size, 'x');
    EXPECT_EQ(address(context_, key), address(context_, std::string(size, 'x')));
    for (const std::size_t changed : {std::size_t{0}, size / 2, size - 1}) {
      if (size == 1 && changed == 0 && addresses.count(address(context_, "y")) != 0) continue;
      std::string other = key;
      other[changed] = 'y';
      addresses.insert(address(context_, other));
      ++count;
    }
    addresses.insert(address(context_, key));
    addresses.insert(address(other_, key));
    count += 2;
  }
  EXPECT_EQ(addresses.size(), count);
}

TEST_F(AddressTest, takes_in_bytes_after_a_zero) {
  EXPECT_NE(address(context_, std::string("a\0b", 3)), address(context_, std::string("a\0c", 3)));
}

}  // namespace
}  // namespace modcache::cache
