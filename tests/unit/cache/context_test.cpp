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

}  // namespace
}  // namespace modcache::cache
