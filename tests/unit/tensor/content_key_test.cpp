// SPDX-License-Identifier: Apache-2.0
//
// Values that only C++ hosts can make, which tests/python/test_content_key.py cannot test. That one
// checks the bytes of FORMAT.md against another BLAKE2b.
#include "tensor/content_key.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using modcache::testing::tuple_of;

std::string key_of(const at::IValue& input) {
  const auto key = content_key(input);
  EXPECT_TRUE(key.is_ok()) << key.status().message();
  return key.is_ok() ? key.value() : "";
}

std::string refusal_of(const at::IValue& input) {
  EXPECT_EQ(content_key(input).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(content_keys(input).status().code(), StatusCode::kInvalidArgument);
  return content_key(input).status().message();
}

const at::Tensor kSample = at::arange(6, at::kFloat).view({2, 3});

TEST(ContentKeyTest, is_the_same_for_ever) {
  EXPECT_EQ(key_of(kSample), "922158bbf5ae267f9ceffe6b81b4153350ab6c514dbe283541655680f3b2b848");
  EXPECT_EQ(key_of(tuple_of({kSample})), key_of(kSample));
}

TEST(ContentKeyTest, text_of_any_bytes_counts_as_it_is) {
  const std::set<std::string> keys{key_of(std::string("\xff")), key_of(std::string("\xfe")),
                                   key_of(std::string("\xff\0", 2)), key_of(std::string())};
  EXPECT_EQ(keys.size(), 4u);
}

TEST(ContentKeyTest, what_is_taken_apart_has_the_key_of_the_whole) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("b", kSample);
  dict.insert("a", kSample.t());
  const at::IValue list = c10::List<std::int64_t>({1, 2});
  const std::vector<at::IValue> leaves{kSample, 1, 2, "b", kSample, "a", kSample.t()};
  EXPECT_EQ(content_key(TakenApart{"(3;.[2;..{2;....", leaves}).value(),
            key_of(tuple_of({kSample, list, dict})));
  EXPECT_EQ(content_key(TakenApart{"(1;.", {kSample}}).value(), key_of(kSample));
}

TEST(ContentKeyTest, what_was_taken_apart_wrongly_is_refused) {
  for (const std::string_view structure :
       {"..", "(", "(;.", "(1", "(-1;.", ".(99999999999999999999;"}) {
    EXPECT_EQ(content_key(TakenApart{structure, {kSample}}).status().code(),
              StatusCode::kInvalidArgument)
        << structure;
  }
}

TEST(ContentKeyTest, names_what_it_cannot_cover) {
  EXPECT_NE(refusal_of(at::Tensor()).find("undefined"), std::string::npos);
  EXPECT_NE(refusal_of(tuple_of({kSample, at::Tensor()})).find("undefined"), std::string::npos);
  EXPECT_NE(refusal_of(at::Storage()).find("Storage"), std::string::npos);
  EXPECT_NE(refusal_of(kSample.to_sparse()).find("key of your own"), std::string::npos);
}

TEST(ContentKeysTest, are_those_of_the_rows) {
  const auto keys = content_keys(tuple_of({kSample, 7, kSample.t().slice(0, 0, 2)}));
  ASSERT_TRUE(keys.is_ok()) << keys.status().message();
  ASSERT_EQ(keys.value().size(), 2u);
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ(keys.value()[row], key_of(tuple_of({kSample[row], 7, kSample.t()[row]})));
  }
}

TEST(ContentKeysTest, none_for_no_rows) {
  EXPECT_TRUE(content_keys(at::ones({0, 3})).value().empty());
}

}  // namespace
}  // namespace modcache::tensor
