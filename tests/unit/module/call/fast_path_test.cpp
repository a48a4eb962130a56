// SPDX-License-Identifier: Apache-2.0
#include "module/call/fast_path.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "module/call/call.h"
#include "support/module_fixture.h"
#include "support/value_tensors.h"

namespace modcache::module {
namespace {

using cache::Mode;

class FastPathTest : public testing::ModuleTest {
 protected:
  void store(const std::string& key, const tensor::Flat& result) const {
    Call call(parts_of(input_), key);
    (void)call.lookup();
    call.begin_run();
    call.finish_run(result, RunFacts{});
  }
  std::optional<at::Tensor> found(const std::string& key, const at::Tensor& input) const {
    return find_on_fast_path({scope_, method_, input, key}, plain_input(input).value());
  }
  std::optional<at::Tensor> found(const std::string& key) const { return found(key, input_); }

  const std::string scope_ = "encoder@1";
  const std::string method_ = "forward";
  const at::Tensor input_ = at::ones({3});
};

TEST_F(FastPathTest, is_open_where_a_stored_value_may_be_returned_without_a_run) {
  for (const Mode mode : {Mode::kOn, Mode::kRead}) {
    set_mode(mode);
    EXPECT_TRUE(fast_path_is_open());
  }
  for (const Mode mode : {Mode::kOff, Mode::kRefresh, Mode::kVerify}) {
    set_mode(mode);
    EXPECT_FALSE(fast_path_is_open());
  }
}

TEST_F(FastPathTest, takes_an_input_that_requires_no_grad_and_can_be_cached) {
  EXPECT_EQ(plain_input(input_)->signature, "float32[3]");
  EXPECT_FALSE(plain_input(input_.to_sparse()).has_value());
  const at::Tensor requires_grad = at::ones({3}).requires_grad_();
  EXPECT_FALSE(plain_input(requires_grad).has_value());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(plain_input(requires_grad).has_value());
}

TEST_F(FastPathTest, hands_out_a_copy_of_what_a_call_kept_in_memory) {
  store("a", tensor::flatten(at::full({2}, 5.0)));
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(found("a").has_value());
    EXPECT_TRUE(at::equal(*found("a"), at::full({2}, 5.0)));
    found("a")->zero_();
  }
  EXPECT_EQ(stat("hits_memory"), 6);
}

TEST_F(FastPathTest, answers_nothing_for_any_other_call_and_counts_nothing) {
  EXPECT_FALSE(found("a").has_value()) << "a miss";
  store("pair", testing::flat_of({input_, input_}));
  EXPECT_FALSE(found("pair").has_value()) << "a structured value";
  store("a", tensor::flatten(at::ones({})));
  EXPECT_FALSE(found("a", at::zeros({3})).has_value()) << "another input";
  forget_memory();
  EXPECT_FALSE(found("a").has_value()) << "only on disk";
  EXPECT_EQ(stat("hits_memory"), 0);
  EXPECT_EQ(stat("hits_disk"), 0);
  EXPECT_EQ(stat("key_conflicts"), 0);
}

}  // namespace
}  // namespace modcache::module
