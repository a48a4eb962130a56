// SPDX-License-Identifier: Apache-2.0
#include "module/watch/watched_contents.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "module/watch/tensor_watch.h"

namespace modcache::module {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kLongRunUs = 100'000'000;

// Watched tensors of `size_bytes` in all, which are written to without a version.
struct Weights {
  explicit Weights(std::int64_t size_bytes) : tensors{at::zeros({size_bytes}, at::kByte)} {}
  void write(std::int64_t at) { tensors[0].data_ptr<std::uint8_t>()[at] ^= 1; }
  TensorWatch watch() const { return {tensors, TensorWatch::Hashing::kContents, nullptr}; }

  std::vector<at::Tensor> tensors;
};

int calls_until_found(const WatchedContents& contents, int most) {
  for (int call = 1; call <= most; ++call) {
    std::this_thread::sleep_for(std::chrono::milliseconds(32));
    if (contents.find_change().has_value()) return call;
  }
  return -1;
}

TEST(WatchedContentsTest, finds_any_write_within_a_call_for_each_4_mib) {
  for (const std::int64_t place : {std::int64_t{0}, 7 * kMiB + 3, 16 * kMiB - 1}) {
    Weights weights(16 * kMiB);
    const TensorWatch watch = weights.watch();
    weights.write(place);
    const int calls = calls_until_found(*watch.contents(), 50);
    EXPECT_GE(calls, 1);
    EXPECT_LE(calls, 4) << place;
    EXPECT_TRUE(watch.contents()->is_refuted());
  }
}

TEST(WatchedContentsTest, finds_nothing_where_nothing_was_written) {
  Weights weights(3 * kMiB + 5);
  const TensorWatch watch = weights.watch();
  EXPECT_EQ(calls_until_found(*watch.contents(), 10), -1);
}

TEST(WatchedContentsTest, tells_in_which_tensor_the_write_was) {
  Weights weights(1000);
  weights.tensors.push_back(at::zeros({2000}));
  const TensorWatch watch = weights.watch();
  weights.tensors[1].data_ptr<float>()[1999] = 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(32));
  EXPECT_EQ(watch.contents()->find_change(), std::size_t{1});
}

TEST(WatchedContentsTest, reads_tensors_with_gaps_and_none_of_what_lies_between) {
  const at::Tensor memory = at::zeros({512, 64});
  const std::vector<at::Tensor> tensors{memory.slice(1, 0, 64, 3)};
  const TensorWatch watch(tensors, TensorWatch::Hashing::kContents, nullptr);
  memory.data_ptr<float>()[64 * 100 + 1] = 1;
  EXPECT_EQ(calls_until_found(*watch.contents(), 5), -1);
  memory.data_ptr<float>()[64 * 100 + 3] = 1;
  EXPECT_EQ(calls_until_found(*watch.contents(), 5), 1);
}

TEST(WatchedContentsTest, checks_at_once_after_a_long_run) {
  Weights weights(4 * kMiB);
  const TensorWatch watch = weights.watch();
  const auto verdict = watch.contents()->judge_run(kLongRunUs);
  EXPECT_FALSE(verdict.is_changed);
  EXPECT_EQ(verdict.confirmation, nullptr);
  weights.write(12345);
  EXPECT_TRUE(watch.contents()->judge_run(kLongRunUs).is_changed);
}

class ProvisionalRunsTest : public ::testing::Test {
 protected:
  // Makes the first check, so that the checks of the runs that follow are put off.
  ProvisionalRunsTest() { EXPECT_EQ(contents().judge_run(1).confirmation, nullptr); }
  const WatchedContents& contents() const { return *watch_.contents(); }

  Weights weights_{16 * kMiB};
  const TensorWatch watch_ = weights_.watch();
};

TEST_F(ProvisionalRunsTest, share_a_confirmation_while_one_of_them_waits) {
  const auto first = contents().judge_run(1);
  const auto second = contents().judge_run(1);
  ASSERT_NE(first.confirmation, nullptr);
  EXPECT_EQ(first.confirmation, second.confirmation);
  EXPECT_TRUE(first.confirmation->settle(*first.evidence));
  EXPECT_NE(contents().judge_run(1).confirmation, first.confirmation);
}

TEST_F(ProvisionalRunsTest, are_refuted_by_evidence_of_a_write) {
  const auto run = contents().judge_run(1);
  weights_.write(5 * kMiB);
  EXPECT_FALSE(run.confirmation->settle(*run.evidence));
  EXPECT_TRUE(contents().is_refuted());
}

TEST_F(ProvisionalRunsTest, are_settled_by_the_check_of_a_later_one) {
  const auto right = contents().judge_run(1);
  EXPECT_FALSE(contents().judge_run(kLongRunUs).is_changed);
  EXPECT_TRUE(right.confirmation->is_confirmed());
  const auto wrong = contents().judge_run(1);
  weights_.write(5 * kMiB);
  EXPECT_TRUE(contents().judge_run(kLongRunUs).is_changed);
  EXPECT_TRUE(wrong.confirmation->is_refuted());
}

TEST_F(ProvisionalRunsTest, can_be_confirmed_when_the_weights_are_gone) {
  const auto run = contents().judge_run(1);
  weights_.tensors.clear();
  EXPECT_TRUE(run.confirmation->settle(*run.evidence));
}

TEST_F(ProvisionalRunsTest, are_refuted_where_the_weights_were_given_other_memory) {
  const auto run = contents().judge_run(1);
  weights_.tensors[0].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::zeros({1}).storage().allocator()->allocate(8));
  EXPECT_FALSE(run.confirmation->settle(*run.evidence));
}

TEST(WatchedContentsTest, refutes_what_nobody_is_left_to_check) {
  ConfirmationPtr confirmation;
  {
    Weights weights(16 * kMiB);
    const TensorWatch watch = weights.watch();
    watch.contents()->judge_run(1);
    confirmation = watch.contents()->judge_run(1).confirmation;  // its evidence is not kept
    ASSERT_NE(confirmation, nullptr);
    EXPECT_FALSE(confirmation->is_refuted());
  }
  EXPECT_TRUE(confirmation->is_refuted());
}

TEST(WatchedContentsTest, hands_over_what_is_open_to_a_watch_that_borrowed_its_digests) {
  Weights weights(16 * kMiB);
  const TensorWatch before = weights.watch();
  before.contents()->judge_run(1);
  const auto run = before.contents()->judge_run(1);
  const TensorWatch borrowed(weights.tensors, TensorWatch::Hashing::kContents, &before);
  before.hand_over_to(borrowed);
  EXPECT_FALSE(run.confirmation->is_confirmed() || run.confirmation->is_refuted());
  const TensorWatch fresh = weights.watch();
  borrowed.hand_over_to(fresh);
  EXPECT_TRUE(run.confirmation->is_confirmed());
}

}  // namespace
}  // namespace modcache::module
