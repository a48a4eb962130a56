// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "module/exported/exported.h"

namespace modcache::module {
namespace {

std::string text_of(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += std::to_string(field.size()) + ':' + field;
  return text;
}

const std::vector<std::string> kFields{
    "modcache site 3", "n", "encoder@1", "digest", "forward",    "Encoder", "key",
    "float32[1]",      "",  "compiled",  "",       "float32:2,", "",        "rows"};

TEST(RecordedCallTest, is_read_from_its_text) {
  const RecordedCall recorded = RecordedCall::parse(text_of(kFields));
  EXPECT_EQ(recorded.scope_kind, ScopeKind::kNamed);
  EXPECT_EQ(recorded.scope, "encoder@1");
  EXPECT_EQ(recorded.digest, "digest");
  EXPECT_EQ(recorded.method, "forward");
  EXPECT_EQ(recorded.class_name, "Encoder");
  EXPECT_EQ(recorded.key, "key");
  EXPECT_EQ(recorded.input.signature, "float32[1]");
  EXPECT_TRUE(recorded.is_compiled);
  EXPECT_EQ(recorded.dtypes, "float32:2,");
  EXPECT_TRUE(recorded.are_rows_proven);
}

TEST(RecordedCallTest, has_the_padding_that_was_seen) {
  auto fields = kFields;
  fields[0] = "modcache site 4";
  fields.insert(fields.end(), {"mask", "4616189618054758400", "1,0,", "weights", "(int64[~])"});
  const RecordedCall recorded = RecordedCall::parse(text_of(fields));
  ASSERT_TRUE(recorded.padding.has_value());
  EXPECT_FALSE(recorded.padding->has_lengths);
  EXPECT_EQ(recorded.padding->value, 4.0);
  EXPECT_EQ(recorded.padding->dims, (std::vector<tensor::DimSet>{1, 0}));
  EXPECT_EQ(recorded.padding->digest, "weights");
  EXPECT_EQ(recorded.padding->signature, "(int64[~])");
  for (const auto& [place, text] : {std::pair(14, "other"), {15, "x"}, {16, "1"}, {16, "-1,"}}) {
    auto wrong = fields;
    wrong[place] = text;
    EXPECT_THROW(RecordedCall::parse(text_of(wrong)), c10::Error) << text;
  }
}

TEST(RecordedCallTest, is_refused_where_its_text_is_another) {
  const std::string text = text_of(kFields);
  EXPECT_THROW(RecordedCall::parse(""), c10::Error);
  EXPECT_THROW(RecordedCall::parse("recorded"), c10::Error);
  EXPECT_THROW(RecordedCall::parse(text.substr(0, text.size() - 4)), c10::Error);
  EXPECT_THROW(RecordedCall::parse(text + "1:x"), c10::Error);
  EXPECT_THROW(RecordedCall::parse("99999999999999999999999:"), c10::Error);
  auto other_kind = kFields;
  other_kind[1] = "z";
  EXPECT_THROW(RecordedCall::parse(text_of(other_kind)), c10::Error);
}

}  // namespace
}  // namespace modcache::module
