// SPDX-License-Identifier: Apache-2.0
#include "module/exported/exported.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class ExportedTest : public testing::ModuleTest {
 protected:
  ExportedTest() {
    site_.scope = "encoder@1";
    site_.method = "forward";
    site_.class_name = "Encoder";
    site_.key = "a";
    site_.input = tensor::form_of_input(input_[0]);
    site_.dtypes = "float32:1,";
  }
  at::Tensor probe() const { return module::probe({ids_, input_, weights_, sizes_, site_}); }
  static std::int64_t number_of(const at::Tensor& handle) { return handle.item<std::int64_t>(); }
  bool is_hit() const { return number_of(probe()) >= 0; }
  void store(float value) const { (void)put(probe(), {at::full({2}, value)}); }

  RecordedCall site_;
  std::optional<at::Tensor> ids_;
  std::vector<at::Tensor> input_{at::ones({2})};
  std::vector<at::Tensor> weights_{at::ones({3})};
  std::vector<std::int64_t> sizes_{2};
};

TEST_F(ExportedTest, a_miss_is_run_and_put_and_then_fetched) {
  const at::Tensor miss = probe();
  EXPECT_LT(number_of(miss), 0);
  const at::Tensor result = at::full({2}, 5.0F);
  const at::Tensor given = put(miss, {result})[0];
  EXPECT_TRUE(at::equal(given, result));
  EXPECT_FALSE(given.is_alias_of(result));
  const at::Tensor hit = probe();
  EXPECT_GE(number_of(hit), 0);
  EXPECT_TRUE(at::equal(fetch(hit)[0], result));
}

TEST_F(ExportedTest, a_copy_of_a_ticket_serves_as_long_as_the_ticket_lives) {
  store(5);
  std::optional<at::Tensor> handle = probe();
  const at::Tensor copy = handle->clone();
  EXPECT_TRUE(at::equal(fetch(copy)[0], at::full({2}, 5.0F)));
  handle.reset();
  EXPECT_THAT([&] { (void)fetch(copy); }, ThrowsMessage<c10::Error>(HasSubstr("holds no result")));
  EXPECT_TRUE(at::equal(put(at::tensor({-5}, at::kLong), {input_[0]})[0], input_[0]));
  EXPECT_THROW((void)fetch(at::ones({2})), c10::Error) << "no handle at all";
}

TEST_F(ExportedTest, ids_are_one_key_for_each_row) {
  site_.are_rows_proven = true;
  ids_ = at::tensor({7, 8}, at::kLong);
  input_ = {at::tensor({1.0F, 2.0F})};
  (void)put(probe(), {at::tensor({10.0F, 20.0F})});
  ids_ = at::tensor({8, 7}, at::kLong);
  input_ = {at::tensor({2.0F, 1.0F})};
  EXPECT_TRUE(at::equal(fetch(probe())[0], at::tensor({20.0F, 10.0F})));
  ids_ = at::tensor({7}, at::kLong);
  EXPECT_THROW((void)probe(), c10::Error) << "the input has two rows";
}

TEST_F(ExportedTest, a_named_scope_does_not_follow_the_weights) {
  store(5);
  weights_[0].add_(1);
  EXPECT_TRUE(is_hit());
}

TEST_F(ExportedTest, a_baked_scope_is_that_of_the_weights_it_was_recorded_with) {
  site_.scope_kind = ScopeKind::kBaked;
  site_.digest = weights_digest(weights_);
  store(5);
  site_.scope_kind = ScopeKind::kNamed;
  EXPECT_TRUE(is_hit()) << "the recorded's own scope";
  site_.scope_kind = ScopeKind::kBaked;
  weights_[0].add_(1);
  EXPECT_NE(weights_digest(weights_), site_.digest);
  EXPECT_FALSE(is_hit());
  weights_[0].sub_(1);
  EXPECT_TRUE(is_hit());
}

TEST_F(ExportedTest, DoesNotStoreAResultWhoseWeightsChangedDuringTheRun) {
  site_.scope_kind = ScopeKind::kEager;
  const at::Tensor handle = probe();
  weights_[0].add_(1);
  (void)put(handle, {at::full({2}, 5.0F)});
  EXPECT_EQ(stat("bypassed_impure"), 1);
  weights_[0].sub_(1);
  EXPECT_FALSE(is_hit());
}

TEST_F(ExportedTest, weights_that_cannot_be_hashed_are_run_uncached) {
  site_.scope_kind = ScopeKind::kEager;
  weights_ = {at::ones({2}).to_sparse()};
  store(5);
  EXPECT_FALSE(is_hit());
  EXPECT_EQ(stat("bypassed_identity"), 2);
}

TEST_F(ExportedTest, what_requires_grad_is_run_uncached_while_grad_mode_is_on) {
  store(5);
  input_[0].requires_grad_();
  EXPECT_FALSE(is_hit());
  EXPECT_EQ(stat("bypassed_grad"), 1);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_hit());
}

TEST_F(ExportedTest, another_arithmetic_than_the_recorded_one_is_run_uncached) {
  store(5);
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  EXPECT_FALSE(is_hit());
  site_.is_compiled = true;
  EXPECT_TRUE(is_hit()) << "compiled code leaves nothing of it to the run";
  c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  EXPECT_EQ(stat("bypassed_type"), 1);
}

TEST_F(ExportedTest, nothing_is_looked_up_while_the_mode_is_off) {
  store(5);
  set_mode(cache::Mode::kOff);
  EXPECT_FALSE(is_hit());
  EXPECT_EQ(stat("bypassed_off"), 1);
}

TEST_F(ExportedTest, a_cache_that_fails_gives_no_ticket) {
  const at::Tensor handle = no_handle("the disk is on fire");
  EXPECT_LT(number_of(handle), 0);
  EXPECT_TRUE(at::equal(put(handle, input_)[0], input_[0]));
  EXPECT_EQ(stat("errors"), 1);
  EXPECT_EQ(log_.about("the disk is on fire: it runs without the cache").size(), 1u);
}

}  // namespace
}  // namespace modcache::module
