// SPDX-License-Identifier: Apache-2.0
#include "module/call/learned_padding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::module {
namespace {

using testing::flat_of;
using Dims = std::vector<tensor::DimSet>;

tensor::RowPadding padding_of(std::vector<std::int64_t> lengths, std::int64_t longest) {
  tensor::RowPadding padding;
  padding.longest = longest;
  padding.lengths = std::move(lengths);
  return padding;
}

TEST(PlanTrialTest, takes_the_row_with_the_most_padding) {
  const auto trial = plan_trial(padding_of({5, 2, 0, 3}, 5), {0, 1, 2, 3}, std::nullopt);
  EXPECT_EQ(trial->row, 1);
  EXPECT_EQ(trial->length, 2);
  EXPECT_EQ(plan_trial(padding_of({5, 2, 0, 3}, 5), {3, 2}, std::nullopt)->row, 3);
}

TEST(PlanTrialTest, pads_a_row_further_where_it_is_hardly_padded_and_cuts_it_where_it_cannot_be) {
  const auto lengths_of = [](const tensor::RowPadding& padding) {
    std::vector<std::int64_t> lengths;
    while (const auto trial = plan_trial(padding, {0, 1}, std::nullopt, lengths.size())) {
      lengths.push_back(trial->length);
    }
    return lengths;
  };
  EXPECT_EQ(lengths_of(padding_of({8, 8}, 8)), (std::vector<std::int64_t>{12, 10, 7}));
  EXPECT_EQ(lengths_of(padding_of({1, 1}, 1)), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(lengths_of(padding_of({63, 64}, 64)), (std::vector<std::int64_t>{96, 80, 63}));
  EXPECT_EQ(lengths_of(padding_of({32, 64}, 64)), (std::vector<std::int64_t>{32}));
}

TEST(PlanTrialTest, needs_none_for_what_is_known) {
  const auto padded = padding_of({10, 8}, 10);
  EXPECT_FALSE(plan_trial(padded, {0, 1}, LearnedPadding{{1}, 0.5}).has_value());
  EXPECT_TRUE(plan_trial(padded, {0, 1}, LearnedPadding{{1}, 0}).has_value());
  EXPECT_TRUE(plan_trial(padded, {0}, LearnedPadding{{1}, 0}).has_value());
  EXPECT_TRUE(plan_trial(padded, {0, 1}, LearnedPadding{{1}, 0.05}).has_value())
      << "a small share shows little";
  EXPECT_FALSE(plan_trial(padding_of({20, 19}, 20), {0, 1}, LearnedPadding{{1}, 0.05}).has_value());
}

TEST(JudgeTrialTest, finds_the_dimensions_that_follow_the_length) {
  const auto padding = padding_of({2, 4}, 4);
  const PaddingTrial trial{0, 2};
  const at::Tensor tokens = at::arange(2 * 4 * 4, at::kFloat).view({2, 4, 4});
  const at::Tensor maps = at::ones({2, 3, 4, 4});
  const at::Tensor pooled = at::ones({2, 4});
  const auto outcome = judge_trial(
      flat_of({tokens, maps, pooled}), 0,
      flat_of({tokens.slice(0, 0, 1).slice(1, 0, 2),
               maps.slice(0, 0, 1).slice(2, 0, 2).slice(3, 0, 2), pooled.slice(0, 0, 1)}),
      trial, padding, 1e-3);
  EXPECT_EQ(outcome.why_not, "");
  EXPECT_EQ(outcome.dims, (Dims{0b1, 0b110, 0}));
  EXPECT_EQ(outcome.shown_share, 0.5);
}

TEST(JudgeTrialTest, refuses_another_result_for_the_true_part) {
  const auto padding = padding_of({2, 4}, 4);
  const at::Tensor tokens = at::ones({2, 4, 3});
  const auto judged = [&](const at::Tensor& tried) {
    return judge_trial(flat_of({tokens}), 0, flat_of({tried}), {0, 2}, padding, 1e-3);
  };
  EXPECT_EQ(judged(at::ones({1, 2, 3}) * 1.0001).why_not, "");
  EXPECT_NE(judged(at::ones({1, 2, 3}) * 1.1).why_not.find("mask"), std::string::npos);
  EXPECT_NE(judged(at::ones({1, 3, 3})).why_not.find("another form"), std::string::npos);
  EXPECT_NE(judged(at::ones({1, 2})).why_not.find("another form"), std::string::npos);
}

TEST(JudgeTrialTest, learns_shapes_alone_where_a_part_of_the_row_was_cut_off) {
  const auto padding = padding_of({4, 4}, 4);
  const auto outcome = judge_trial(flat_of({at::ones({2, 4})}), 0, flat_of({at::zeros({1, 3})}),
                                   {0, 3}, padding, 1e-3);
  EXPECT_EQ(outcome.why_not, "");
  EXPECT_EQ(outcome.dims, Dims{0b1});
  EXPECT_FALSE(outcome.agrees());
}

TEST(LearnedPaddingTest, is_kept_for_each_context) {
  const Digest128 one{1, 2};
  EXPECT_FALSE(learned_padding(one).has_value());
  note_padding(one, {{0b1}, 0.5});
  EXPECT_EQ(learned_padding(one)->dims, Dims{0b1});
  EXPECT_FALSE(learned_padding(Digest128{1, 3}).has_value());
}

TEST(HasPaddedDimsTest, the_dimensions_have_the_longest_size) {
  const auto result = flat_of({at::ones({2, 4, 3}), at::ones({2, 8})});
  EXPECT_TRUE(has_padded_dims(result, {0b1, 0}, 4));
  EXPECT_FALSE(has_padded_dims(result, {0b10, 0}, 4));
  EXPECT_FALSE(has_padded_dims(result, {0b1}, 4));
}

}  // namespace
}  // namespace modcache::module
