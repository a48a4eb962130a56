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

using tensor::Flat;
using testing::flat_of;
using Dims = std::vector<tensor::DimSet>;
using Kind = PaddingTrial::Kind;

tensor::RowPadding padding_of(std::vector<std::int64_t> lengths, std::int64_t longest) {
  tensor::RowPadding padding;
  padding.longest = longest;
  padding.lengths = std::move(lengths);
  return padding;
}

std::vector<PaddingTrial> of_kind(const std::vector<PaddingTrial>& trials, Kind kind) {
  std::vector<PaddingTrial> found;
  for (const PaddingTrial& trial : trials) {
    if (trial.kind == kind) found.push_back(trial);
  }
  return found;
}

std::vector<std::int64_t> lengths_of(const std::vector<PaddingTrial>& trials, Kind kind) {
  std::vector<std::int64_t> lengths;
  for (const PaddingTrial& trial : of_kind(trials, kind)) lengths.push_back(trial.length);
  return lengths;
}

LearnedPadding known(double shown_share, int agreements, bool are_sizes_known) {
  LearnedPadding learned;
  learned.dims = {1};
  learned.shown_share = shown_share;
  learned.agreements = agreements;
  learned.are_sizes_known = are_sizes_known;
  return learned;
}

TEST(PlanTrialsTest, take_the_row_with_the_most_padding) {
  const auto trials = plan_trials(padding_of({5, 2, 0, 3}, 5), {0, 1, 2, 3}, {0}, std::nullopt);
  EXPECT_EQ(trials[0].row, 1);
  EXPECT_EQ(trials[0].length, 2);
  EXPECT_EQ(plan_trials(padding_of({5, 2, 0, 3}, 5), {3, 2}, {0}, std::nullopt)[0].row, 3);
}

TEST(PlanTrialsTest, take_the_longest_row_with_padding_too) {
  const auto second = [](std::vector<std::int64_t> lengths) {
    const auto trials =
        plan_trials(padding_of(std::move(lengths), 9), {0, 1, 2}, {0}, std::nullopt);
    std::vector<std::int64_t> found;
    for (const PaddingTrial& trial : of_kind(trials, Kind::kSecondRow)) {
      found.insert(found.end(), {trial.row, trial.length});
    }
    return found;
  };
  EXPECT_EQ(second({3, 9, 6}), (std::vector<std::int64_t>{2, 6}));
  EXPECT_TRUE(second({3, 9, 9}).empty()) << "it is the shortest one";
  EXPECT_EQ(second({1, 9, 0}), (std::vector<std::int64_t>{1, 14})) << "one place shows little";
  EXPECT_EQ(second({1, 4, 9}), (std::vector<std::int64_t>{1, 4}));
  EXPECT_TRUE(second({1, 0, 0}).empty());
}

TEST(PlanTrialsTest, pad_a_row_further_where_it_is_hardly_padded_and_cut_it_where_it_cannot_be) {
  const auto lengths = [](const tensor::RowPadding& padding) {
    return lengths_of(plan_trials(padding, {0, 1}, {0}, std::nullopt), Kind::kPadding);
  };
  EXPECT_EQ(lengths(padding_of({8, 8}, 8)), (std::vector<std::int64_t>{12, 10, 7}));
  EXPECT_EQ(lengths(padding_of({1, 1}, 1)), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(lengths(padding_of({63, 64}, 64)), (std::vector<std::int64_t>{96, 80, 63}));
  EXPECT_EQ(lengths(padding_of({32, 64}, 64)), (std::vector<std::int64_t>{32}));
}

TEST(PlanTrialsTest, go_far_away_for_sizes_and_leave_some_padded_tensors_as_they_are) {
  const auto trials = plan_trials(padding_of({8, 4}, 8), {0, 1}, {0, 2}, std::nullopt);
  EXPECT_EQ(lengths_of(trials, Kind::kLength), (std::vector<std::int64_t>{67, 35, 19, 17, 6}));
  EXPECT_EQ(lengths_of(trials, Kind::kCut), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(of_kind(trials, Kind::kCut)[0].row, 0);
  const auto each = of_kind(trials, Kind::kSome);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].kept, 0b1u);
  EXPECT_EQ(each[1].kept, 0b100u);
  EXPECT_EQ(each[1].length, 4);
  EXPECT_TRUE(
      of_kind(plan_trials(padding_of({8, 4}, 8), {0, 1}, {0}, std::nullopt), Kind::kSome).empty());
}

// An index beyond a table breaks the process there.
TEST(PlanTrialsTest, are_no_longer_than_the_batch_on_an_accelerator) {
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{8, 4}, {8, 8}, {1, 8}}) {
    const auto trials =
        plan_trials(padding_of(lengths, 8), {0, 1}, {0}, std::nullopt, /*is_on_accelerator=*/true);
    EXPECT_FALSE(trials.empty());
    for (const PaddingTrial& trial : trials) EXPECT_LE(trial.length, 8);
  }
}

TEST(PlanTrialsTest, are_none_for_what_is_known) {
  const auto trials = [](const tensor::RowPadding& padding, const LearnedPadding& learned) {
    return plan_trials(padding, {0, 1}, {0, 2}, learned).size();
  };
  EXPECT_EQ(trials(padding_of({10, 5}, 10), known(0.5, 8, true)), 0u);
  EXPECT_EQ(trials(padding_of({10, 5}, 10), known(0.5, 1, true)), 1u) << "eight batches agree";
  EXPECT_EQ(trials(padding_of({10, 10}, 10), known(0.5, 1, true)), 0u);
  EXPECT_GT(trials(padding_of({10, 5}, 10), known(0.5, 8, false)), 0u);
  EXPECT_GT(trials(padding_of({20, 17}, 20), known(0.05, 1, true)), 0u)
      << "a small share shows little";
  EXPECT_EQ(trials(padding_of({20, 19}, 20), known(0.05, 1, true)), 0u);
}

TEST(PlanTrialsTest, look_for_unused_tensors_one_by_one_and_leave_a_part_of_the_used_as_they_are) {
  const PaddingTrial some{1, 4, 0b1, Kind::kSome};
  const auto of_use = plan_trials_of_use(some, {0, 2});
  ASSERT_EQ(of_use.size(), 3u);
  for (const PaddingTrial& trial : of_use) {
    EXPECT_EQ(trial.kind, Kind::kUnused);
    EXPECT_EQ(trial.row, 1);
    EXPECT_EQ(trial.length, 4);
  }
  EXPECT_EQ(of_use[0].altered, PaddingTrial::kNone);
  EXPECT_EQ(of_use[0].kept, 0u);
  EXPECT_EQ(of_use[2].altered, 2);
  EXPECT_EQ(of_use[2].kept, 0b100u);
  const auto kept = [&](std::uint64_t used) {
    std::vector<std::uint64_t> sets;
    for (const PaddingTrial& trial : plan_trials_of_some(some, {0, 1, 2}, used)) {
      sets.push_back(trial.kept);
    }
    return sets;
  };
  EXPECT_EQ(kept(0b111).size(), 6u);
  EXPECT_EQ(kept(0b101), (std::vector<std::uint64_t>{0b001, 0b011, 0b100, 0b110}))
      << "whether 1 is used may depend on the row";
  EXPECT_TRUE(kept(0b010).empty());
}

LearnedPadding judged(const Flat& result, const Flat& tried, const PaddingTrial& trial,
                      const tensor::RowPadding& padding) {
  LearnedPadding learned;
  judge_trial(result, tried, trial, padding, 1e-3, learned);
  return learned;
}

TEST(JudgeTrialTest, finds_the_dimensions_that_follow_the_length) {
  const at::Tensor tokens = at::arange(2 * 4 * 4, at::kFloat).view({2, 4, 4});
  const at::Tensor maps = at::ones({2, 3, 4, 4});
  const at::Tensor pooled = at::ones({2, 4});
  const auto learned =
      judged(flat_of({tokens, maps, pooled}),
             flat_of({tokens.slice(0, 0, 1).slice(1, 0, 2),
                      maps.slice(0, 0, 1).slice(2, 0, 2).slice(3, 0, 2), pooled.slice(0, 0, 1)}),
             {0, 2}, padding_of({2, 4}, 4));
  EXPECT_EQ(learned.why_not, "");
  EXPECT_EQ(learned.dims, (Dims{0b1, 0b110, 0}));
  EXPECT_EQ(learned.shown_share, 0.5);
  EXPECT_EQ(learned.agreements, 1);
}

TEST(JudgeTrialTest, judges_a_second_row_likewise) {
  const Flat result = flat_of({at::arange(8, at::kFloat).reshape({2, 4})});
  const PaddingTrial trial{1, 2, 0, Kind::kSecondRow, 1};
  LearnedPadding learned;
  judge_trial(result, flat_of({at::tensor({4.0F, 5.0F}).unsqueeze(0)}), trial,
              padding_of({4, 2}, 4), 1e-3, learned);
  EXPECT_EQ(learned.agreements, 0) << "it counts batches";
  EXPECT_TRUE(learned.why_not.empty());
  judge_trial(result, flat_of({at::tensor({4.0F, 0.0F}).unsqueeze(0)}), trial,
              padding_of({4, 2}, 4), 1e-3, learned);
  EXPECT_TRUE(learned.is_refused());
}

TEST(JudgeTrialTest, refuses_another_result_for_the_true_part_for_good) {
  const auto padding = padding_of({2, 4}, 4);
  const Flat tokens = flat_of({at::ones({2, 4, 3})});
  EXPECT_EQ(judged(tokens, flat_of({at::ones({1, 2, 3}) * 1.0001}), {0, 2}, padding).why_not, "");
  const auto other = judged(tokens, flat_of({at::ones({1, 2, 3}) * 1.1}), {0, 2}, padding);
  EXPECT_NE(other.why_not.find("mask"), std::string::npos);
  EXPECT_TRUE(other.is_refused());
}

TEST(JudgeTrialTest, names_dtypes_that_depend_on_the_padding) {
  const Flat tokens = flat_of({at::ones({2, 4, 3})});
  const Flat tried = flat_of({at::ones({1, 2, 3}, at::kBFloat16)});
  const auto learned = judged(tokens, tried, {0, 2}, padding_of({2, 4}, 4));
  EXPECT_NE(learned.why_not.find("BFloat16 and Float"), std::string::npos);
  EXPECT_TRUE(learned.is_refused());
}

TEST(JudgeTrialTest, sees_a_difference_beside_one_large_number) {
  at::Tensor tokens = at::ones({2, 4, 300});
  tokens.select(2, 0).fill_(5000);
  at::Tensor tried = tokens.slice(0, 0, 1).slice(1, 0, 2).clone();
  tried.slice(2, 1).add_(0.3);
  const auto learned = judged(flat_of({tokens}), flat_of({tried}), {0, 2}, padding_of({2, 4}, 4));
  EXPECT_TRUE(learned.is_refused());
}

TEST(JudgeTrialTest, refuses_sizes_that_follow_in_steps_or_changed_their_mind) {
  const auto padding = padding_of({2, 4}, 4);
  const Flat tokens = flat_of({at::ones({2, 4, 3})});
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{1, 3, 3}, {1, 2}, {2, 2, 3}}) {
    const auto learned = judged(tokens, flat_of({at::ones(sizes)}), {0, 2}, padding);
    EXPECT_NE(learned.why_not.find("sizes"), std::string::npos);
    EXPECT_FALSE(learned.is_refused()) << "another batch may tell more";
  }
  LearnedPadding learned = known(0.5, 1, false);
  judge_trial(tokens, flat_of({at::ones({1, 4, 3})}), {0, 9, 0, Kind::kLength}, padding, 1e-3,
              learned);
  EXPECT_NE(learned.why_not, "");
}

TEST(JudgeTrialTest, learns_sizes_alone_where_a_part_of_the_row_was_cut_off) {
  const auto learned = judged(flat_of({at::ones({2, 4})}), flat_of({at::zeros({1, 3})}), {0, 3},
                              padding_of({4, 4}, 4));
  EXPECT_EQ(learned.why_not, "");
  EXPECT_EQ(learned.dims, Dims{0b1});
  EXPECT_FALSE(learned.agrees());
}

TEST(LearnedPaddingTest, is_kept_for_each_context) {
  const Digest128 one{1, 2};
  EXPECT_FALSE(learned_padding(one).has_value());
  note_padding(one, known(0.5, 1, true));
  EXPECT_EQ(learned_padding(one)->dims, Dims{0b1});
  EXPECT_FALSE(learned_padding(Digest128{1, 3}).has_value());
}

TEST(LearnedPaddingTest, fits_results_whose_other_sizes_are_as_they_were) {
  const auto learned = judged(flat_of({at::ones({2, 4, 3})}), flat_of({at::ones({1, 2, 3})}),
                              {0, 2}, padding_of({2, 4}, 4));
  EXPECT_TRUE(learned.fits(flat_of({at::ones({5, 7, 3})}), 7));
  EXPECT_FALSE(learned.fits(flat_of({at::ones({5, 7, 2})}), 7));
  EXPECT_FALSE(learned.fits(flat_of({at::ones({5, 7, 3, 1})}), 7));
  EXPECT_FALSE(learned.fits(flat_of({at::ones({5, 6, 3})}), 7));
}

TEST(HasPaddedDimsTest, the_dimensions_have_the_longest_size) {
  const auto result = flat_of({at::ones({2, 4, 3}), at::ones({2, 8})});
  EXPECT_TRUE(has_padded_dims(result, {0b1, 0}, 4));
  EXPECT_FALSE(has_padded_dims(result, {0b10, 0}, 4));
  EXPECT_FALSE(has_padded_dims(result, {0b1}, 4));
}

}  // namespace
}  // namespace modcache::module
