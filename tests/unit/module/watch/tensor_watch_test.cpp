// SPDX-License-Identifier: Apache-2.0
#include "module/watch/tensor_watch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "module/watch/optimizer_steps.h"

namespace modcache::module {
namespace {

using Hashing = TensorWatch::Hashing;

class TensorWatchTest : public ::testing::Test {
 protected:
  bool is_unchanged() const { return watch_.is_true_of(tensors_); }

  std::vector<at::Tensor> tensors_{at::arange(1, 1001, at::kFloat), at::ones({3}), at::Tensor()};
  const TensorWatch watch_{tensors_, Hashing::kContents, nullptr};
};

TEST_F(TensorWatchTest, sees_no_change_where_there_is_none) {
  for (int turn = 0; turn < 20; ++turn) EXPECT_TRUE(is_unchanged());
}

TEST_F(TensorWatchTest, sees_an_in_place_write_by_its_version) {
  tensors_[1].add_(1);
  EXPECT_FALSE(is_unchanged());
  EXPECT_FALSE(watch_.same_identity(1, tensors_[1]));
}

TEST_F(TensorWatchTest, sees_data_that_was_replaced) {
  tensors_[0].set_data(tensors_[0].clone());
  EXPECT_FALSE(is_unchanged());
}

TEST_F(TensorWatchTest, sees_a_tensor_that_took_anothers_place_even_at_one_address) {
  tensors_[1] = at::Tensor();
  EXPECT_FALSE(is_unchanged());
  for (int i = 0; i < 100; ++i) {
    tensors_[1] = at::ones({3});
    ASSERT_FALSE(is_unchanged());
    tensors_[1] = at::Tensor();
  }
}

TEST_F(TensorWatchTest, sees_another_shape_over_the_same_bytes) {
  tensors_[0].unsafeGetTensorImpl()->set_sizes_contiguous({10, 100});
  EXPECT_FALSE(is_unchanged());
}

TEST_F(TensorWatchTest, sees_a_list_that_became_longer_or_shorter) {
  auto longer = tensors_;
  longer.push_back(at::ones({1}));
  EXPECT_FALSE(watch_.is_true_of(longer));
  EXPECT_FALSE(watch_.is_true_of({tensors_[0]}));
  EXPECT_FALSE(watch_.is_true_of({}));
}

TEST_F(TensorWatchTest, sees_a_byte_that_changed_without_a_version_in_a_sampled_place) {
  tensors_[0].variable_data()[0] = -1;  // the first bytes are always among the samples
  std::optional<std::size_t> changed;
  for (int turn = 0; turn < 4 && !changed.has_value(); ++turn) changed = watch_.find_change();
  EXPECT_EQ(changed, 0u);
}

TEST_F(TensorWatchTest, sees_all_elements_scaled_without_a_version_at_once) {
  tensors_[0].variable_data().mul_(2);
  EXPECT_EQ(watch_.find_change(), 0u);
}

TEST_F(TensorWatchTest, sees_writes_to_inference_tensors_which_have_no_version) {
  const c10::InferenceMode inference(true);
  std::vector<at::Tensor> tensors{at::ones({100})};
  const TensorWatch watch(tensors, Hashing::kContents, nullptr);
  EXPECT_TRUE(watch.is_true_of(tensors));
  tensors[0].mul_(2);
  EXPECT_EQ(watch.find_change(), 0u);
}

TEST_F(TensorWatchTest, sees_a_gradient_that_came_changed_or_went) {
  at::Tensor& gradient = tensors_[0].mutable_grad();
  for (int change = 0; change < 4; ++change) {
    const TensorWatch watch(tensors_, Hashing::kContents, nullptr);
    if (change % 2 == 0) {
      gradient = at::ones({1000});
    } else if (change == 1) {
      gradient.add_(1);
    } else {
      gradient = at::Tensor();
    }
    EXPECT_FALSE(watch.is_true_of(tensors_));
  }
}

TEST_F(TensorWatchTest, sees_a_gradient_that_lies_where_an_earlier_one_did) {
  at::Tensor& gradient = tensors_[0].mutable_grad();
  for (int i = 0; i < 100; ++i) {
    gradient = at::ones({1000});
    const TensorWatch watch(tensors_, Hashing::kContents, nullptr);
    gradient = at::Tensor();
    gradient = at::ones({1000});
    ASSERT_FALSE(watch.is_true_of(tensors_));
  }
}

TEST_F(TensorWatchTest, compares_what_has_no_plain_memory_by_identity_and_version) {
  std::vector<at::Tensor> tensors{at::eye(3).to_sparse(), at::eye(3).to_sparse_csr()};
  const TensorWatch watch(tensors, Hashing::kNone, nullptr);
  EXPECT_TRUE(watch.is_true_of(tensors));
  tensors[0].mul_(2);
  EXPECT_FALSE(watch.is_true_of(tensors));
}

TEST_F(TensorWatchTest, keeps_no_tensor_alive) {
  tensors_[0] = at::ones({2});
  EXPECT_EQ(tensors_[0].use_count(), 1u);
  const TensorWatch watch(tensors_, Hashing::kContents, nullptr);
  EXPECT_EQ(tensors_[0].use_count(), 1u);
}

TEST_F(TensorWatchTest, digests_are_over_dtype_shape_and_values_not_strides) {
  const at::Tensor matrix = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_EQ(module::hash_tensor(matrix), module::hash_tensor(matrix.clone()));
  EXPECT_EQ(module::hash_tensor(matrix.t()), module::hash_tensor(matrix.t().contiguous()));
  const std::vector<at::Tensor> different{matrix,
                                          matrix.view({3, 2}),
                                          matrix.view({6}),
                                          matrix.to(at::kDouble),
                                          matrix + 1,
                                          at::Tensor(),
                                          at::ones({0}),
                                          at::ones({0, 1}),
                                          at::zeros({}, at::kInt),
                                          at::zeros({}),
                                          at::zeros({}, at::kBool)};
  std::set<std::string> digests;
  for (const at::Tensor& tensor : different) digests.insert(module::hash_tensor(tensor).hex());
  EXPECT_EQ(digests.size(), different.size());
}

TEST_F(TensorWatchTest, lends_digests_of_what_is_unchanged_and_hashes_the_rest) {
  tensors_[1].add_(1);
  const TensorWatch renewed(tensors_, Hashing::kContents, &watch_);
  EXPECT_EQ(renewed.digest(0), watch_.digest(0));
  EXPECT_EQ(renewed.digest(1), module::hash_tensor(tensors_[1]));
  EXPECT_NE(renewed.digest(1), watch_.digest(1));
}

TEST_F(TensorWatchTest, HashesOnlyTheSteppedTensorsAgain) {
  // Neither write is seen by a sample, and only the stepped tensor is hashed again.
  const auto write_silently = [](const at::Tensor& tensor) { tensor.data_ptr<float>()[70] = -1; };
  std::vector<at::Tensor> tensors{at::ones({1000}), at::ones({1000})};
  const TensorWatch watch(tensors, Hashing::kContents, nullptr);
  for (const at::Tensor& tensor : tensors) write_silently(tensor);
  note_optimizer_step({tensors[1]});
  EXPECT_FALSE(watch.is_true_of(tensors));
  const TensorWatch renewed(tensors, Hashing::kContents, &watch);
  EXPECT_EQ(renewed.digest(0), watch.digest(0));
  EXPECT_EQ(renewed.digest(1), module::hash_tensor(tensors[1]));
  EXPECT_TRUE(renewed.is_true_of(tensors));
}

TEST_F(TensorWatchTest, IgnoresStepsOfOtherTensors) {
  note_optimizer_step({at::ones({3})});
  EXPECT_TRUE(is_unchanged());
}

TEST_F(TensorWatchTest, HashesAllAgainAfterASilentChangeOfOne) {
  tensors_.push_back(at::ones({1000}));
  const TensorWatch watch(tensors_, Hashing::kContents, nullptr);
  tensors_[0].variable_data().mul_(2);
  tensors_[3].data_ptr<float>()[70] = -1;
  const TensorWatch renewed(tensors_, Hashing::kContents, &watch);
  EXPECT_EQ(renewed.digest(0), module::hash_tensor(tensors_[0]));
  EXPECT_EQ(renewed.digest(3), module::hash_tensor(tensors_[3]));
}

// --- After a run ---------------------------------------------------------------------------------

constexpr std::chrono::microseconds kShortRun{1};

TEST_F(TensorWatchTest, IsUnchangedAfterARunThatChangedNothing) {
  for (int turn = 0; turn < 20; ++turn) EXPECT_TRUE(watch_.is_unchanged_after(kShortRun));
}

TEST_F(TensorWatchTest, SeesAfterARunThatASampleDiffers) {
  tensors_[0].variable_data().mul_(2);
  EXPECT_FALSE(watch_.is_unchanged_after(kShortRun));
}

TEST_F(TensorWatchTest, SeesAfterARunThatAnOptimizerStepped) {
  note_optimizer_step({tensors_[1]});
  EXPECT_FALSE(watch_.is_unchanged_after(kShortRun));
}

TEST_F(TensorWatchTest, SeesAfterARunThatTheStorageIsGoneOrHasOtherMemory) {
  std::vector<at::Tensor> tensors{at::ones({8})};
  const TensorWatch moved(tensors, Hashing::kContents, nullptr);
  tensors[0].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      tensors[0].storage().allocator()->allocate(32));
  EXPECT_FALSE(moved.is_unchanged_after(kShortRun));
  const TensorWatch freed(tensors, Hashing::kContents, nullptr);
  tensors.clear();
  EXPECT_FALSE(freed.is_unchanged_after(kShortRun));
}

TEST_F(TensorWatchTest, ReadsOnAfterALongRun) {
  tensors_[0].data_ptr<float>()[70] = -1;  // between the samples
  EXPECT_TRUE(watch_.is_unchanged_after(kShortRun));
  EXPECT_FALSE(watch_.is_unchanged_after(std::chrono::seconds(1)));
  EXPECT_FALSE(watch_.is_unchanged_after(kShortRun)) << "it stays changed";
}

}  // namespace
}  // namespace modcache::module
