// SPDX-License-Identifier: Apache-2.0
#include "module/call/call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "support/eventually.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;

class CallTest : public testing::ModuleTest {
 protected:
  static std::unique_ptr<Call> call_of(const std::string& key, const at::Tensor& input) {
    return std::make_unique<Call>(parts_of(input), key);
  }
  std::unique_ptr<Call> call_of(const std::string& key) const { return call_of(key, input_); }
  static void run(Call& call, const at::Tensor& result) {
    call.begin_run();
    call.finish_run(tensor::flatten(result), RunFacts{});
  }
  // What a call finds, as a number; -1: nothing.
  double found(const std::string& key) const {
    const auto hit = call_of(key)->lookup();
    return hit == nullptr ? -1 : hit->hand_out_tensor(std::nullopt).item<double>();
  }
  void store(const std::string& key, double number) const {
    const auto call = call_of(key);
    (void)call->lookup();
    run(*call, at::full({}, number));
  }

  const at::Tensor input_ = at::ones({3});
};

TEST_F(CallTest, finds_what_an_earlier_call_with_its_key_kept) {
  EXPECT_EQ(found("a"), -1);
  store("a", 5);
  EXPECT_EQ(found("a"), 5);
  EXPECT_EQ(found("b"), -1);
  forget_memory();
  EXPECT_EQ(found("a"), 5);
  EXPECT_EQ(stat("misses"), 1) << "a run was counted, and no look-up without one";
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(CallTest, keeps_a_sample_of_its_input_also_where_it_runs_although_it_found_a_value) {
  store("a", 5);
  const auto call = call_of("a");
  ASSERT_NE(call->lookup(), nullptr);
  run(*call, at::full({}, 6.0));
  EXPECT_EQ(found("a"), 6);
  EXPECT_EQ(call_of("a", at::zeros({3}))->lookup(), nullptr);
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(CallTest, waits_for_the_run_of_another_thread) {
  const auto leading = call_of("a");
  ASSERT_EQ(leading->lookup(), nullptr);
  double waited_for = 0;
  std::thread waiting([&] { waited_for = found("a"); });
  run(*leading, at::full({}, 5.0));
  waiting.join();
  EXPECT_EQ(waited_for, 5);
}

TEST_F(CallTest, lets_others_go_on_when_it_is_abandoned_destroyed_or_refused) {
  const auto abandoned = call_of("a");
  EXPECT_EQ(abandoned->lookup(), nullptr);
  auto destroyed = call_of("b");
  EXPECT_EQ(destroyed->lookup(), nullptr);
  configure({{"strict", "true"}});
  const auto refused = call_of("c");
  EXPECT_EQ(refused->lookup(), nullptr);
  std::atomic<bool> is_done{false};
  std::thread others([&] {
    EXPECT_EQ(found("a"), -1);
    EXPECT_EQ(found("b"), -1);
    EXPECT_EQ(found("c"), -1);
    is_done = true;
  });
  abandoned->abandon();
  destroyed.reset();
  EXPECT_THROW(run(*refused, at::ones({}).requires_grad_()), c10::Error);
  // Awake, as a leader that sleeps is given up for lost.
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(25);  // a wait ends after 30 s
  while (!is_done && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(is_done);
  others.join();
}

TEST_F(CallTest, under_admission_second_a_result_is_stored_at_the_second_run_of_its_key) {
  configure({{"admission", "second"}});
  store("a", 5);
  EXPECT_EQ(stat("misses"), 1);
  EXPECT_EQ(stat("stored"), 0);
  store("a", 6);
  EXPECT_EQ(found("a"), 6);
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_EQ(stat("stored"), 1);
}

class LeadingCall final : public Call {
 public:
  using Call::Call;
  bool is_awaited(const std::string& key) const {
    return lead_.is_awaited(store::address_of(context_->digest, key));
  }
};

TEST_F(CallTest, under_admission_second_a_result_that_others_wait_for_is_stored) {
  configure({{"admission", "second"}});
  LeadingCall leading(parts_of(input_), "a");
  ASSERT_EQ(leading.lookup(), nullptr);
  std::atomic<double> waited_for{0};
  std::thread waiting([&] { waited_for = found("a"); });
  EXPECT_TRUE(testing::eventually([&] { return leading.is_awaited("a"); }));
  run(leading, at::full({}, 5.0));
  waiting.join();
  EXPECT_EQ(waited_for, 5);
  EXPECT_EQ(stat("misses"), 1);
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(CallTest, of_a_scope_that_is_switched_off_is_counted_once_and_stores_nothing) {
  store("a", 5);
  configure({{"verify_share", "1"}});
  for (int i = 0; i < 3; ++i) {
    const auto call = call_of("a");
    EXPECT_EQ(call->lookup(), nullptr);
    EXPECT_FALSE(call->is_bypassed());
    run(*call, at::full({}, 6.0 + i));
  }
  const std::int64_t stored = stat("stored");
  const auto bypassed = call_of("b");
  EXPECT_EQ(bypassed->lookup(), nullptr);
  ASSERT_TRUE(bypassed->is_bypassed());
  EXPECT_EQ(stat("bypassed_verify"), 1);
  run(*bypassed, at::full({}, 5.0));
  EXPECT_EQ(stat("bypassed_verify"), 1);
  EXPECT_EQ(stat("stored"), stored);
}

TEST_F(CallTest, whose_hit_is_drawn_compares_its_result_and_replaces_what_differs) {
  store("a", 5);
  configure({{"verify_share", "1"}});
  for (const double fresh : {5.0, 6.0}) {
    const auto call = call_of("a");
    EXPECT_EQ(call->lookup(), nullptr);
    run(*call, at::full({}, fresh));
  }
  EXPECT_EQ(stat("verified"), 2);
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(stat("misses"), 1) << "that of the first run";
  EXPECT_EQ(stat("hits_memory"), 0);
  configure({{"verify_share", "0"}});
  EXPECT_EQ(found("a"), 6);
  forget_memory();
  EXPECT_EQ(found("a"), 6);
}

TEST_F(CallTest, that_rejects_a_hit_replaces_it) {
  store("a", 5);
  const auto call = call_of("a");
  ASSERT_NE(call->lookup(), nullptr);
  call->reject_hit();
  run(*call, at::full({}, 6.0));
  EXPECT_EQ(found("a"), 6);
  forget_memory();
  EXPECT_EQ(found("a"), 6);
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(CallTest, says_whether_its_result_was_kept_and_which_rule_forbade_it) {
  const auto kept = call_of("a");
  run(*kept, at::ones({}));
  EXPECT_TRUE(kept->outcome().has_stored);
  EXPECT_EQ(kept->outcome().refused_for, "");
  const auto refused = call_of("b");
  run(*refused, at::ones({}).requires_grad_());
  EXPECT_FALSE(refused->outcome().has_stored);
  EXPECT_EQ(refused->outcome().refused_for, "grad");
  EXPECT_EQ(found("b"), -1);
}

TEST_F(CallTest, keeps_the_input_as_it_was_before_the_run) {
  const at::Tensor input = at::ones({3});
  const auto call = call_of("a", input);
  ASSERT_EQ(call->lookup(), nullptr);
  call->begin_run();
  input.add_(1);
  call->finish_run(tensor::flatten(at::full({}, 5.0)), RunFacts{});
  EXPECT_NE(call_of("a", at::ones({3}))->lookup(), nullptr);
  EXPECT_EQ(call_of("a", at::full({3}, 2.0))->lookup(), nullptr);
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(CallTest, finds_nothing_and_keeps_nothing_without_a_scope) {
  CallParts parts = parts_of(input_);
  parts.scope.clear();
  Call call(parts, "a");
  EXPECT_EQ(call.lookup(), nullptr);
  run(call, at::ones({}));
  EXPECT_FALSE(call.outcome().has_stored);
  EXPECT_EQ(stat("misses"), 1);
}

TEST_F(CallTest, that_may_require_grad_is_run_once_to_learn_whether_its_result_does) {
  CallParts parts = parts_of(input_);
  parts.grad_pattern = 7;
  parts.scope = "learns@1";
  Call first(parts, "a");
  EXPECT_EQ(first.lookup(), nullptr);
  run(first, at::full({}, 5.0));
  Call second(parts, "a");
  EXPECT_NE(second.lookup(), nullptr);
}

TEST_F(CallTest, stores_nothing_under_read) {
  store("a", 5);
  set_mode(Mode::kRead);
  EXPECT_EQ(found("a"), 5);
  store("b", 6);
  EXPECT_EQ(found("b"), -1);
}

TEST_F(CallTest, runs_and_replaces_under_refresh) {
  store("a", 5);
  set_mode(Mode::kRefresh);
  EXPECT_EQ(found("a"), -1);
  store("a", 6);
  set_mode(Mode::kOn);
  EXPECT_EQ(found("a"), 6);
}

TEST_F(CallTest, runs_and_compares_under_verify) {
  store("a", 5);
  set_mode(Mode::kVerify);
  EXPECT_EQ(found("a"), -1);
  store("a", 5);
  EXPECT_EQ(stat("verify_differences"), 0);
  EXPECT_EQ(stat("misses"), 1) << "what was compared is no miss";
  store("a", 6);
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(log_.about("for key 'a' of Encoder.forward").size(), 1u);
}

}  // namespace
}  // namespace modcache::module
