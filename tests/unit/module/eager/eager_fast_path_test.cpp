// SPDX-License-Identifier: Apache-2.0
#include "module/eager/eager_fast_path.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "module/call/call.h"
#include "module/watch/watch.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

class EagerFastPathTest : public testing::ModuleTest {
 protected:
  void store(const std::string& key) const {
    Call call(parts_of(input_), key);
    (void)call.lookup();
    call.begin_run();
    call.finish_run(tensor::flatten(input_ * 2), RunFacts{});
  }
  std::optional<at::Tensor> fast(const std::string& key, const Watch* watch = nullptr,
                                 const std::string& digest = "") const {
    return eager_fast_path({scope_, method_, input_, key}, {weights_, watch, digest});
  }

  const std::string scope_ = "encoder@1";
  const std::string method_ = "forward";
  const at::Tensor input_ = at::ones({3});
  const std::vector<at::Tensor> weights_{at::ones({2})};
};

TEST_F(EagerFastPathTest, finds_a_plain_hit_alone) {
  EXPECT_EQ(fast("a"), std::nullopt);
  store("a");
  ASSERT_TRUE(fast("a").has_value());
  EXPECT_TRUE(at::equal(*fast("a"), input_ * 2));
  set_mode(cache::Mode::kOff);
  EXPECT_EQ(fast("a"), std::nullopt);
}

TEST_F(EagerFastPathTest, finds_nothing_of_weights_that_require_grad_while_grad_mode_is_on) {
  store("a");
  weights_[0].requires_grad_(true);
  EXPECT_EQ(fast("a"), std::nullopt);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(fast("a").has_value());
}

TEST_F(EagerFastPathTest, finds_nothing_of_watched_weights_that_are_not_what_their_digest_says) {
  store("a");
  Watch watch;
  const std::string digest = watch.digest(weights_);
  EXPECT_TRUE(fast("a", &watch, digest).has_value());
  EXPECT_EQ(fast("a", &watch, "another"), std::nullopt);
  weights_[0].add_(1);
  EXPECT_EQ(fast("a", &watch, digest), std::nullopt);
}

}  // namespace
}  // namespace modcache::module
