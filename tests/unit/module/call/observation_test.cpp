// SPDX-License-Identifier: Apache-2.0
#include "module/call/observation.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <string>
#include <thread>

namespace modcache::module {
namespace {

using ::testing::HasSubstr;

template <typename Run>
std::string observed(Run run) {
  Observation observation;
  run();
  observation.end();
  return observation.impure_because();
}

TEST(ObservationTest, arithmetic_is_pure_and_random_numbers_are_not) {
  EXPECT_EQ(observed([] { (void)(at::ones({2}) + 1); }), "");
  EXPECT_THAT(observed([] { (void)at::rand({2}); }), HasSubstr("aten::rand"));
  EXPECT_THAT(observed([] { (void)at::ones({2}).normal_(); }), HasSubstr("aten::normal_"));
}

TEST(ObservationTest, dropout_draws_in_training_alone) {
  const at::Tensor x = at::ones({8});
  EXPECT_EQ(observed([&] { (void)at::dropout(x, 0.5, /*train=*/false); }), "");
  EXPECT_NE(observed([&] { (void)at::dropout(x, 0.5, /*train=*/true); }), "");
}

// Calls it as TorchScript's interpreter does, with more on the stack than its arguments.
void call_dropout(bool train, torch::jit::Stack below) {
  const auto dropout = c10::Dispatcher::singleton().findSchemaOrThrow("aten::dropout", "");
  torch::jit::push(below, at::ones({8}), 0.5, train);
  dropout.callBoxed(&below);
}

TEST(ObservationTest, only_an_operators_own_arguments_say_whether_it_draws) {
  EXPECT_EQ(observed([] { call_dropout(false, {std::int64_t{1}, std::int64_t{2}}); }), "");
  EXPECT_THAT(observed([] {
                call_dropout(true, {std::int64_t{1}, std::int64_t{2}, false});
              }),
              HasSubstr("aten::dropout"));
}

TEST(ObservationTest, what_an_inner_observation_sees_the_outer_sees_too) {
  std::string inner;
  const std::string outer = observed([&] { inner = observed([] { (void)at::rand({2}); }); });
  EXPECT_NE(inner, "");
  EXPECT_NE(outer, "");
}

TEST(ObservationTest, an_inner_observation_does_not_see_what_came_before_and_after_it) {
  std::string inner;
  const std::string outer = observed([&] {
    (void)at::rand({2});
    inner = observed([] { (void)(at::ones({2}) + 1); });
    (void)at::rand({2});
  });
  EXPECT_EQ(inner, "");
  EXPECT_NE(outer, "");
  EXPECT_EQ(observed([] { (void)(at::ones({2}) + 1); }), "");
}

TEST(ObservationTest, threads_that_draw_for_themselves_do_not_matter) {
  EXPECT_EQ(observed([] { std::thread([] { (void)at::rand({2}); }).join(); }), "");
}

TEST(ObservationTest, one_that_ends_in_another_thread_counts_as_impure_and_is_gone) {
  Observation observation;
  std::thread([&] { observation.end(); }).join();
  EXPECT_THAT(observation.impure_because(), HasSubstr("another thread"));
  (void)at::rand({2});
  EXPECT_EQ(observed([] { (void)(at::ones({2}) + 1); }), "");
}

}  // namespace
}  // namespace modcache::module
