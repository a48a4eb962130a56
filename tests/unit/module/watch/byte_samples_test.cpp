// SPDX-License-Identifier: Apache-2.0
#include "module/watch/byte_samples.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <vector>

namespace modcache::module {
namespace {

using Effort = ByteSamples::Effort;

ByteSamples samples_of(const std::vector<at::Tensor>& tensors, Effort effort = Effort::kHigh) {
  ByteSamples samples;
  for (std::size_t i = 0; i < tensors.size(); ++i) samples.add(i, tensors[i], effort);
  return samples;
}

TEST(ByteSamplesTest, find_nothing_where_nothing_changed) {
  const std::vector<at::Tensor> tensors{at::ones({1000}), at::ones({}), at::empty({0}),
                                        at::ones({3}, at::kBool), at::ones({10, 10}).t()};
  const ByteSamples samples = samples_of(tensors);
  for (std::uint64_t turn = 0; turn < 20; ++turn)
    EXPECT_EQ(samples.find_change(turn), std::nullopt);
}

TEST(ByteSamplesTest, find_the_one_tensor_of_many_that_changed_at_any_turn) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back(at::arange(1, 1 + i % 7 * 100 + 1, at::kFloat));
  for (std::size_t changed = 0; changed < tensors.size(); ++changed) {
    const ByteSamples samples = samples_of(tensors);
    tensors[changed].mul_(2);
    EXPECT_EQ(samples.find_change(changed), changed);
    EXPECT_FALSE(samples.all_match(changed));
    EXPECT_TRUE(samples.all_match((changed + 1) % tensors.size()));
  }
}

TEST(ByteSamplesTest, cover_the_last_bytes_within_one_round_of_turns) {
  at::Tensor tensor = at::ones({1001});
  const ByteSamples samples = samples_of({tensor});
  tensor[1000] = 2;
  int seen = 0;
  for (std::uint64_t turn = 0; turn < 7; ++turn) seen += samples.find_change(turn).has_value();
  EXPECT_EQ(seen, 1);
}

TEST(ByteSamplesTest, are_not_blinded_by_zeros) {
  at::Tensor tensor = at::zeros({1000});
  tensor.slice(0, 200) = 1;
  const ByteSamples samples = samples_of({tensor});
  tensor.mul_(2);
  EXPECT_EQ(samples.find_change(0), 0u);
}

TEST(ByteSamplesTest, look_where_the_gradient_says_that_a_step_will_write) {
  for (const std::int64_t row : {0, 777, 999}) {
    at::Tensor tensor = at::ones({1000, 16});
    tensor[0] = 0;
    tensor.mutable_grad() = at::zeros({1000, 16});
    tensor.mutable_grad()[row] = 1;
    const ByteSamples samples = samples_of({tensor});
    tensor[row].sub_(1);
    EXPECT_EQ(samples.find_change(0), 0u);
  }
}

TEST(ByteSamplesTest, leave_alone_what_lies_between_the_elements_of_a_tensor) {
  at::Tensor base = at::ones({100, 2});
  const ByteSamples samples = samples_of({base.select(1, 0)});
  base.select(1, 1).mul_(2);
  for (std::uint64_t turn = 0; turn < 8; ++turn) EXPECT_EQ(samples.find_change(turn), std::nullopt);
  base.select(1, 0).mul_(2);
  EXPECT_EQ(samples.find_change(0), 0u);
}

TEST(ByteSamplesTest, compare_small_tensors_that_count_no_versions_whole) {
  const c10::InferenceMode inference(true);
  for (const std::int64_t element : {0, 1, 500, 1023}) {
    at::Tensor tensor = at::zeros({1024});
    const ByteSamples samples = samples_of({tensor});
    EXPECT_EQ(samples.find_change(0), std::nullopt);
    tensor[element] = 1;
    EXPECT_EQ(samples.find_change(0), 0u);
  }
}

TEST(ByteSamplesTest, let_some_of_absurdly_many_tensors_wait) {
  std::vector<at::Tensor> tensors(5000);
  for (at::Tensor& tensor : tensors) tensor = at::ones({100});
  const ByteSamples samples = samples_of(tensors);
  tensors.back().mul_(2);
  EXPECT_EQ(samples.find_change(0), std::nullopt);
  EXPECT_EQ(samples.find_change(1), tensors.size() - 1);
}

}  // namespace
}  // namespace modcache::module
