// SPDX-License-Identifier: Apache-2.0
#include "module/call/padding_trials.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/row_padding.h"

namespace modcache::module {
namespace {

using testing::flat_of;
using Module = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kLongest = 6;
const std::vector<std::int64_t> kLengths{6, 2, 4};

// A batch of numbers whose rows end at their lengths, and ones that the module may take for data.
at::Tensor batch() {
  at::Tensor numbers = at::ones({3, kLongest});
  for (std::int64_t row = 0; row < 3; ++row) {
    numbers[row].narrow(0, 0, kLengths[row]).copy_(at::arange(kLengths[row]) + 10 * row);
  }
  return numbers;
}

class PaddingTrialsTest : public ::testing::Test {
 protected:
  PaddingTrialsTest() {
    parts_.padding.emplace();
    parts_.padding->longest = kLongest;
    parts_.padding->lengths = kLengths;
    parts_.input.tensors = {batch()};
    parts_.input.padded_dims = {1};
    parts_.input.signature = "(float32[3,6])";
  }

  // Runs all trials. A module that returns an undefined tensor raises.
  LearnedPadding learned_of(const Module& module,
                            const std::optional<LearnedPadding>& known = std::nullopt) {
    PaddingTrials trials(parts_, flat_of({module(batch())}), {0, 1, 2}, known);
    count_ = 0;
    while (const auto trial = trials.next()) {
      const at::Tensor row = tensor::one_row_of_length(batch(), trial->row, kLongest,
                                                       trial->kept != 0 ? kLongest : trial->length);
      const at::Tensor output = module(row);
      trials.judge(output.defined() ? std::optional(flat_of({output})) : std::nullopt);
      ++count_;
    }
    result_ = trials.take_result().tensors.at(0);
    return trials.take_learned();
  }

  CallParts parts_;
  int count_ = 0;
  at::Tensor result_;
};

TEST_F(PaddingTrialsTest, a_module_that_works_place_by_place_is_found_to_agree) {
  const LearnedPadding learned = learned_of([](const at::Tensor& x) { return x * 2; });
  EXPECT_EQ(learned.why_not, "");
  EXPECT_TRUE(learned.agrees());
  EXPECT_EQ(learned.dims, std::vector<tensor::DimSet>{1});
  EXPECT_EQ(learned.signature, parts_.input.signature);
  EXPECT_GT(count_, 0);
  EXPECT_TRUE(result_.equal(batch() * 2));
}

TEST_F(PaddingTrialsTest, a_module_that_takes_its_padding_for_data_is_refused_at_once) {
  const LearnedPadding learned =
      learned_of([](const at::Tensor& x) { return x + x.sum(1, /*keepdim=*/true); });
  EXPECT_TRUE(learned.is_refused()) << learned.why_not;
  EXPECT_FALSE(learned.agrees());
}

TEST_F(PaddingTrialsTest, a_module_that_takes_no_other_length_shows_nothing) {
  const LearnedPadding learned =
      learned_of([](const at::Tensor& x) { return x.size(1) == kLongest ? x * 2 : at::Tensor(); });
  EXPECT_EQ(learned.why_not, "it cannot be run on a row of another length");
  EXPECT_EQ(learned.failures, 1);
  EXPECT_FALSE(learned.is_refused());  // another batch may show it
}

TEST_F(PaddingTrialsTest, what_was_shown_before_is_kept_and_needs_fewer_trials) {
  const Module twice = [](const at::Tensor& x) { return x * 2; };
  const LearnedPadding first = learned_of(twice);
  const int trials = count_;
  const LearnedPadding second = learned_of(twice, first);
  EXPECT_LT(count_, trials);
  EXPECT_EQ(second.agreements, first.agreements + 1);
}

}  // namespace
}  // namespace modcache::module
