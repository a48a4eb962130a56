// SPDX-License-Identifier: Apache-2.0
#include "module/call/dry_run.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/call_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;

class DryRunTest : public testing::CallFixture {
 protected:
  void store(const std::string& key) const { CallFixture::store(key, input_, at::ones({5})); }
  static DryRun ahead(const std::vector<std::string_view>& keys, const at::IValue& input,
                      const std::vector<std::size_t>& rows = {}, std::uint64_t params_grad = 0) {
    return dry_run(parts_of(input), keys, rows, input, params_grad);
  }

  const at::Tensor input_ = at::ones({3});
};

TEST_F(DryRunTest, sees_what_a_call_would_find_and_changes_nothing) {
  store("a");
  const auto before = test_cache().stats();
  const DryRun found = ahead({"a", "b"}, input_);
  EXPECT_EQ(found.signatures[0], "float32[3]");
  ASSERT_EQ(found.entries.size(), 2u);
  ASSERT_TRUE(found.entries[0].has_value());
  EXPECT_TRUE(found.entries[0]->is_in_memory);
  EXPECT_TRUE(found.entries[0]->matches);
  EXPECT_FALSE(found.entries[1].has_value());
  EXPECT_EQ(test_cache().stats(), before);
}

TEST_F(DryRunTest, sees_an_entry_of_another_input_that_would_not_be_used) {
  store("a");
  const auto other_values = ahead({"a"}, at::zeros({3})).entries[0];
  ASSERT_TRUE(other_values.has_value());
  EXPECT_FALSE(other_values->matches);
  EXPECT_EQ(other_values->signature, "float32[3]");
}

TEST_F(DryRunTest, looks_at_rows_where_each_has_a_key) {
  const at::Tensor input = at::tensor({1.0F, 2.0F});
  CallFixture::store(Names{"a", "b"}, input, input * 2);
  const DryRun found = ahead({"b", "a", "c"}, input, {1, 1, 0});
  EXPECT_EQ(found.signatures[0], "float32[]");
  EXPECT_TRUE(found.entries[0]->matches);
  EXPECT_FALSE(found.entries[1]->matches) << "row 1 is not the input of key a";
  EXPECT_FALSE(found.entries[2].has_value());
  EXPECT_FALSE(ahead({"a"}, input).entries[0].has_value()) << "a key for the whole input";
}

TEST_F(DryRunTest, says_why_an_input_is_not_cached) {
  const DryRun found = ahead({"a"}, input_.to_sparse());
  EXPECT_NE(found.why_not_cacheable, "");
  EXPECT_FALSE(found.entries[0].has_value());
}

TEST_F(DryRunTest, says_whether_a_run_is_needed_to_learn_of_a_graph) {
  EXPECT_FALSE(ahead({"a"}, input_).grad_is_unknown);
  EXPECT_TRUE(ahead({"a"}, input_, {}, 77).grad_is_unknown);
  CallParts parts = parts_of(input_);
  parts.grad_pattern = grad_pattern(77, parts.input);
  note_graph_free(parts);
  EXPECT_FALSE(ahead({"a"}, input_, {}, 77).grad_is_unknown);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(ahead({"a"}, input_, {}, 78).grad_is_unknown);
}

}  // namespace
}  // namespace modcache::module
