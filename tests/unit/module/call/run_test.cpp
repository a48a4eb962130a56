// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the result of a run: whole calls. rows_test.cpp has those with a key for each
// row.
#include "module/call/run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "support/call_fixture.h"
#include "support/eventually.h"

namespace modcache::module {
namespace {

using cache::Mode;

class RunTest : public testing::CallFixture {
 protected:
  std::unique_ptr<module::Run> run_of(const std::string& key) const {
    return CallFixture::run_of(key, input_);
  }
  void store(const std::string& key, double number) const {
    finish(*run_of(key), at::full({}, number));
  }
  double found(const std::string& key) const {
    const auto value = hit_of(key, input_);
    return value.has_value() ? value->item<double>() : -1;
  }

  const at::Tensor input_ = at::ones({3});
};

TEST_F(RunTest, has_one_step_with_the_whole_input_and_gives_the_result_back_as_it_is) {
  const auto run = run_of("a");
  const Step* const step = run->step();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->kind, Step::Kind::kRun);
  EXPECT_TRUE(step->is_whole_input);
  EXPECT_TRUE(step->input_of(input_).toTensor().is_same(input_));
  finish(*run, at::ones({}));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_FALSE(run->value().has_value());
}

TEST_F(RunTest, says_whether_its_result_was_stored_and_which_rule_forbade_it) {
  const auto stored = run_of("a");
  finish(*stored, at::ones({}));
  EXPECT_TRUE(stored->outcome().has_stored);
  EXPECT_EQ(stored->outcome().refused_for, "");
  const auto refused = run_of("b");
  finish(*refused, at::ones({}).requires_grad_());
  EXPECT_FALSE(refused->outcome().has_stored);
  EXPECT_EQ(refused->outcome().refused_for, "grad");
  EXPECT_EQ(found("b"), -1);
}

TEST_F(RunTest, measures_and_counts_its_time) {
  const auto run = run_of("a");
  run->start(std::chrono::steady_clock::now() - std::chrono::seconds(2));
  EXPECT_EQ(stat("misses"), 0);
  run->finish(tensor::flatten(at::ones({})));
  EXPECT_GE(run->run_us(), 2'000'000);
  EXPECT_LT(run->run_us(), 60'000'000);
  EXPECT_EQ(stat("run_us"), run->run_us());
  EXPECT_EQ(stat("misses"), 1);
  (void)found("a");
  EXPECT_EQ(stat("saved_us"), run->run_us());
}

TEST_F(RunTest, that_ended_is_one_observed_miss_whether_or_not_its_value_is_taken) {
  const auto misses = [] {
    const auto counts = test_cache().counters().latencies().miss.snapshot().counts;
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const std::int64_t before = misses();
  const auto run = run_of("a");
  finish(*run, at::ones({}));
  EXPECT_EQ(misses(), before + 1);
  EXPECT_EQ(run->step(), nullptr);
  (void)run->value();
  EXPECT_EQ(misses(), before + 1);
}

TEST_F(RunTest, stores_the_sample_of_the_input_as_it_was_before_the_run) {
  const at::Tensor input = at::ones({3});
  const auto run = CallFixture::run_of("a", input);
  run->start();
  input.add_(1);
  run->finish(tensor::flatten(at::full({}, 5.0)));
  EXPECT_TRUE(hit_of("a", at::ones({3})).has_value());
  EXPECT_FALSE(hit_of("a", at::full({3}, 2.0)).has_value());
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(RunTest, is_not_stored_after_a_clear_that_came_since_it_began) {
  for (const char* const scope : {"", "encoder@1", "another"}) {
    const auto run = run_of(scope + std::string("key"));
    run->start();
    test_cache().clear({scope, ""}, cache::Cache::Tier::kAll);
    run->finish(tensor::flatten(at::full({}, 5.0)));
    const bool is_stored = scope == std::string("another");
    EXPECT_EQ(run->outcome().has_stored, is_stored) << scope;
    EXPECT_EQ(found(scope + std::string("key")), is_stored ? 5 : -1) << scope;
  }
}

TEST_F(RunTest, under_admission_second_is_stored_at_the_second_run_of_its_key) {
  configure({{"admission", "second"}});
  store("a", 5);
  EXPECT_EQ(stat("misses"), 1);
  EXPECT_EQ(stat("stored"), 0);
  store("a", 6);
  EXPECT_EQ(found("a"), 6);
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(RunTest, under_admission_second_is_stored_where_others_wait_for_it) {
  configure({{"admission", "second"}});
  const auto leading = run_of("a");
  std::atomic<bool> has_begun{false};
  std::atomic<double> waited_for{0};
  std::thread waiting([&] {
    has_begun = true;
    waited_for = found("a");
  });
  EXPECT_TRUE(testing::eventually([&] { return has_begun.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it waits by now
  finish(*leading, at::full({}, 5.0));
  waiting.join();
  EXPECT_EQ(waited_for, 5);
  EXPECT_EQ(stat("misses"), 1);
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(RunTest, of_a_rejected_hit_replaces_it) {
  store("a", 5);
  testing::OwnCall call = call_of("a", input_);
  ASSERT_TRUE(call.begin().value.has_value());
  const auto run = call.reject();
  ASSERT_NE(run->step(), nullptr);
  finish(*run, at::full({}, 6.0));
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(found("a"), 6);
  forget_memory();
  EXPECT_EQ(found("a"), 6);
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(RunTest, of_a_value_that_was_waited_for_can_be_rejected) {
  const auto leading = run_of("a");
  double fresh = 0;
  std::thread waiting([&] {
    testing::OwnCall call = call_of("a", input_);
    const Begun begun = call.begin();
    if (!begun.value.has_value()) return;
    const auto run = call.reject();
    if (run->step() == nullptr) return;
    finish(*run, at::full({}, 6.0));
    fresh = 6;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits by now
  finish(*leading, at::full({}, 5.0));
  waiting.join();
  EXPECT_EQ(fresh, 6);
  EXPECT_EQ(found("a"), 6);
}

TEST_F(RunTest, stores_nothing_under_read) {
  store("a", 5);
  set_mode(Mode::kRead);
  EXPECT_EQ(found("a"), 5);
  store("b", 6);
  EXPECT_EQ(found("b"), -1);
}

TEST_F(RunTest, replaces_what_is_stored_under_refresh) {
  store("a", 5);
  set_mode(Mode::kRefresh);
  store("a", 6);
  set_mode(Mode::kOn);
  EXPECT_EQ(found("a"), 6);
}

TEST_F(RunTest, is_compared_with_what_is_stored_under_verify) {
  store("a", 5);
  set_mode(Mode::kVerify);
  store("a", 5);
  EXPECT_EQ(stat("verify_differences"), 0);
  EXPECT_EQ(stat("misses"), 1) << "what was compared is no miss";
  store("a", 6);
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(log_.about("for key 'a' of Encoder.forward").size(), 1u);
  store("b", 7);
  EXPECT_EQ(stat("misses"), 2) << "nothing is stored under its key";
  EXPECT_EQ(stat("stored"), 1);
}

}  // namespace
}  // namespace modcache::module
