// SPDX-License-Identifier: Apache-2.0
//
// What Call::begin() gives: a value, a Run, or neither.
#include "module/call/call.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/call_fixture.h"
#include "support/eventually.h"
#include "support/value_tensors.h"

namespace modcache::module {
namespace {

using cache::Mode;
using testing::flat_of;

class CallTest : public testing::CallFixture {
 protected:
  void store(const std::string& key, double number) const {
    CallFixture::store(key, input_, at::full({}, number));
  }
  // What a call finds, as a number; -1: nothing.
  double found(const std::string& key) const {
    testing::OwnCall call = call_of(key, input_);
    const Begun begun = call.begin();
    return begun.value.has_value() ? tensor_of(*begun.value).item<double>() : -1;
  }
  void expect_no_hits() const {
    for (const char* const counter : {"hits_memory", "hits_disk"}) {
      EXPECT_EQ(stat(counter), 0) << counter;
    }
  }

  const at::Tensor input_ = at::ones({3});
  const at::Tensor batch_ = at::arange(6, at::kFloat).view({2, 3});
};

// ----- hits

TEST_F(CallTest, finds_in_memory_and_on_disk_what_an_earlier_call_stored) {
  EXPECT_EQ(found("a"), -1);
  store("a", 5);
  EXPECT_EQ(found("a"), 5);
  EXPECT_EQ(found("b"), -1);
  forget_memory();
  EXPECT_EQ(found("a"), 5);
  EXPECT_EQ(stat("hits_disk"), 1);
  EXPECT_EQ(found("a"), 5);
  EXPECT_EQ(stat("hits_memory"), 2) << "the disk hit was copied into memory";
  EXPECT_EQ(stat("misses"), 1) << "a run was counted, and no lookup without one";
  EXPECT_EQ(stat("stored"), 1);
}

TEST_F(CallTest, hands_out_copies) {
  CallFixture::store("a", input_, at::full({2}, 5.0));
  for (int turn = 0; turn < 4; ++turn) {
    if (turn == 2) forget_memory();
    const auto value = hit_of("a", input_);
    ASSERT_TRUE(value.has_value());
    EXPECT_TRUE(at::equal(*value, at::full({2}, 5.0)));
    value->zero_();
  }
}

TEST_F(CallTest, finds_structured_values) {
  CallFixture::store("pair", input_, flat_of({input_, input_ * 2}));
  for (int tier = 0; tier < 2; ++tier) {
    testing::OwnCall call = call_of("pair", input_);
    const Begun begun = call.begin();
    ASSERT_TRUE(begun.value.has_value());
    const auto& flat = std::get<tensor::Flat>(*begun.value);
    EXPECT_TRUE(at::equal(flat.tensors[1], input_ * 2));
    forget_memory();
  }
}

TEST_F(CallTest, puts_the_rows_of_a_batch_together_wherever_they_are) {
  CallFixture::store(Names{"a", "b"}, batch_, batch_ * 2);
  for (const char* const counter : {"hits_memory", "hits_disk"}) {
    const auto rows = hit_of(Names{"b", "a"}, batch_.flip({0}));
    ASSERT_TRUE(rows.has_value()) << counter;
    EXPECT_TRUE(at::equal(*rows, (batch_ * 2).flip({0})));
    EXPECT_EQ(stat(counter), 2);
    forget_memory();
  }
}

TEST_F(CallTest, finds_one_row_as_it_finds_many) {
  const at::Tensor wide = at::arange(24, at::kFloat).view({2, 2, 3, 2});
  const std::vector<at::Tensor> results = {batch_ * 2, at::ones({2}, at::kBool),
                                           wide.contiguous(at::MemoryFormat::ChannelsLast),
                                           at::empty({2, 0})};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string first = std::to_string(i) + "a";
    const std::string second = std::to_string(i) + "b";
    CallFixture::store(Names{first, second}, batch_, results[i]);
    for (std::int64_t row = 0; row < 2; ++row) {
      const Names key{row == 0 ? first : second};
      for (int turn = 0; turn < 2; ++turn) {
        const auto one = hit_of(key, batch_.narrow(0, row, 1));
        ASSERT_TRUE(one.has_value()) << key[0];
        testing::expect_same(*one, results[i].narrow(0, row, 1));
        one->zero_();
      }
    }
  }
  EXPECT_EQ(stat("hits_memory"), 16);
  EXPECT_EQ(stat("hits_disk"), 0);
}

TEST_F(CallTest, finds_structured_rows) {
  CallFixture::store(Names{"a", "b"}, batch_, flat_of({batch_, batch_ * 2}));
  testing::OwnCall call = call_of(Names{"b"}, batch_.narrow(0, 1, 1));
  const Begun begun = call.begin();
  ASSERT_TRUE(begun.value.has_value());
  EXPECT_TRUE(
      at::equal(std::get<tensor::Flat>(*begun.value).tensors[1], batch_.narrow(0, 1, 1) * 2));
}

TEST_F(CallTest, keeps_the_mode_that_it_was_made_with) {
  testing::OwnCall call = call_of("a", input_);
  set_mode(Mode::kRead);
  const Begun begun = call.begin();
  finish(*begun.run, at::ones({}));
  EXPECT_EQ(stat("stored"), 1);
}

// ----- misses

TEST_F(CallTest, does_not_find_entries_of_another_input_and_replaces_them) {
  store("a", 5);
  CallFixture::store(Names{"x", "y"}, batch_, batch_);
  const auto run = run_of("a", at::zeros({3}));
  EXPECT_EQ(stat("key_conflicts"), 1);
  finish(*run, at::full({}, 6.0));
  EXPECT_EQ(hit_of("a", at::zeros({3}))->item<double>(), 6);
  const auto rows = run_of(Names{"y", "x"}, batch_);
  EXPECT_EQ(stat("key_conflicts"), 3);
  EXPECT_EQ(stat("hits_memory"), 1);
}

// Farthest of its tiers. Finds nothing, and counts what it is asked for.
class CountingTier final : public cache::Tier {
 public:
  cache::Counter hits() const override { return cache::Counter::kHitsRemote; }
  void find(const cache::Keys& keys, cache::Access, cache::OnMiss, cache::Found&) override {
    lookups.push_back(keys.size());
  }
  void store(const cache::Keys&, OneOrMany<cache::EntryPtr>&, const cache::StoreOptions&,
             OneOrMany<cache::Kept>&) override {}
  void refuse(const store::EntryId&, store::Sequence, const Status&, cache::Access) override {}
  void drop(const store::EntryId&, cache::Access) override {}
  void add_sizes(std::map<std::string, std::int64_t>&, bool) override {}

  std::vector<std::size_t> lookups;  // the number of keys of each
};

class CallLookupsTest : public CallTest {
 protected:
  testing::OwnCall counted(CallParts parts, CallKeys keys) const {
    auto configuration = std::make_shared<cache::Configuration>(*parts.configuration);
    configuration->tiers.nearest_first.push_back(tier_);
    parts.configuration = std::move(configuration);
    parts.are_rows_trusted = true;
    return {std::move(parts), std::move(keys)};
  }
  void run(testing::OwnCall call, const at::Tensor& result) const {
    const Begun begun = call.begin();
    ASSERT_NE(begun.run, nullptr);
    finish(*begun.run, result);
    EXPECT_EQ(begun.run->step(), nullptr);
  }

  const std::shared_ptr<CountingTier> tier_ = std::make_shared<CountingTier>();
};

TEST_F(CallLookupsTest, a_miss_looks_up_once) {
  for (const char* const admission : {"all", "second"}) {
    configure({{"admission", admission}});
    tier_->lookups.clear();
    testing::OwnCall call = counted(parts_of(input_), CallKeys::whole(admission));
    const Begun begun = call.begin();
    finish(*begun.run, at::ones({}));
    EXPECT_EQ(begun.run->step(), nullptr);
    EXPECT_THAT(tier_->lookups, ::testing::ElementsAre(1)) << admission;
  }
}

TEST_F(CallLookupsTest, a_batch_looks_up_once_and_the_farther_tiers_only_what_is_missing) {
  CallFixture::store(Names{"a"}, batch_.narrow(0, 0, 1), batch_.narrow(0, 0, 1));
  testing::OwnCall call = counted(parts_of(batch_, tensor::Per::kRow), CallKeys(Names{"a", "b"}));
  const Begun begun = call.begin();
  finish(*begun.run, batch_.narrow(0, 1, 1));
  EXPECT_EQ(begun.run->step(), nullptr);
  EXPECT_THAT(tier_->lookups, ::testing::ElementsAre(1));
}

TEST_F(CallLookupsTest, a_hit_in_memory_asks_no_other_tier) {
  store("a", 5);
  testing::OwnCall call = counted(parts_of(input_), CallKeys::whole("a"));
  EXPECT_TRUE(call.begin().value.has_value());
  EXPECT_THAT(tier_->lookups, ::testing::IsEmpty());
}

TEST_F(CallLookupsTest, refresh_looks_nothing_up) {
  set_mode(Mode::kRefresh);
  testing::OwnCall call = counted(parts_of(input_), CallKeys::whole("a"));
  const Begun begun = call.begin();
  finish(*begun.run, at::ones({}));
  EXPECT_THAT(tier_->lookups, ::testing::IsEmpty());
}

// ----- calls that always run

TEST_F(CallTest, runs_without_a_scope_and_stores_nothing) {
  CallParts parts = parts_of(input_);
  parts.scope.clear();
  testing::OwnCall call(parts, CallKeys::whole("a"));
  const Begun begun = call.begin();
  ASSERT_NE(begun.run, nullptr);
  finish(*begun.run, at::ones({}));
  EXPECT_FALSE(begun.run->outcome().has_stored);
  EXPECT_EQ(stat("misses"), 1);
}

TEST_F(CallTest, that_may_require_grad_is_run_once_to_learn_whether_its_result_does) {
  CallParts parts = parts_of(input_);
  parts.grad_pattern = 7;
  parts.scope = "learns@1";
  testing::OwnCall first(parts, CallKeys::whole("a"));
  const Begun begun = first.begin();
  ASSERT_NE(begun.run, nullptr);
  finish(*begun.run, at::full({}, 5.0));
  testing::OwnCall second(parts, CallKeys::whole("a"));
  EXPECT_TRUE(second.begin().value.has_value());
}

TEST_F(CallTest, runs_under_refresh_and_verify_whatever_is_stored) {
  store("a", 5);
  for (const Mode mode : {Mode::kRefresh, Mode::kVerify}) {
    set_mode(mode);
    EXPECT_EQ(found("a"), -1);
  }
  expect_no_hits();
}

// ----- other threads

TEST_F(CallTest, waits_for_the_run_of_another_thread_and_then_has_its_value) {
  const auto leading = run_of("a", input_);
  double waited_for = 0;
  std::thread waiting([&] { waited_for = found("a"); });
  finish(*leading, at::full({}, 5.0));
  waiting.join();
  EXPECT_EQ(waited_for, 5);
  EXPECT_EQ(stat("misses"), 1);
}

TEST_F(CallTest, runs_for_itself_when_the_other_run_was_abandoned_destroyed_or_refused) {
  const auto abandoned = run_of("a", input_);
  auto destroyed = run_of("b", input_);
  configure({{"strict", "true"}});
  const auto refused = run_of("c", input_);
  std::atomic<bool> is_done{false};
  std::thread others([&] {
    EXPECT_EQ(found("a"), -1);
    EXPECT_EQ(found("b"), -1);
    EXPECT_EQ(found("c"), -1);
    is_done = true;
  });
  abandoned->abandon();
  destroyed.reset();
  EXPECT_THROW(finish(*refused, at::ones({}).requires_grad_()), c10::Error);
  EXPECT_TRUE(testing::eventually([&] { return is_done.load(); }));
  others.join();
}

TEST_F(CallTest, runs_for_itself_when_the_other_caller_gave_up_its_lead) {
  const auto leading = run_of("a", input_);
  leading->give_up_lead();
  double found_there = 0;
  std::thread([&] { found_there = found("a"); }).join();
  EXPECT_EQ(found_there, -1);
  finish(*leading, at::full({}, 5.0));
  EXPECT_EQ(found("a"), 5);
}

// ----- verify_share

TEST_F(CallTest, runs_sampled_hits_compares_them_and_replaces_what_differs) {
  store("a", 5);
  configure({{"verify_share", "1"}});
  for (const double fresh : {5.0, 6.0}) {
    const auto run = run_of("a", input_);
    finish(*run, at::full({}, fresh));
    EXPECT_EQ(run->step(), nullptr);
  }
  EXPECT_EQ(stat("verified"), 2);
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(stat("misses"), 1) << "that of the first run";
  expect_no_hits();
  configure({{"verify_share", "0"}});
  EXPECT_EQ(found("a"), 6);
  forget_memory();
  EXPECT_EQ(found("a"), 6);
}

TEST_F(CallTest, compares_sampled_rows_and_replaces_those_that_differ) {
  CallFixture::store(Names{"a", "b"}, batch_, batch_ * 2);
  configure({{"verify_share", "1"}});
  const auto run = run_of(Names{"a", "b"}, batch_);
  EXPECT_THAT(run->step()->rows, ::testing::ElementsAre(0, 1));
  at::Tensor fresh = batch_ * 2;
  fresh[1].zero_();
  finish(*run, fresh);
  EXPECT_EQ(run->step(), nullptr);
  EXPECT_EQ(stat("verified"), 2);
  EXPECT_EQ(stat("verify_differences"), 1);
  configure({{"verify_share", "0"}});
  for (int tier = 0; tier < 2; ++tier) {
    EXPECT_TRUE(at::equal(hit_of(Names{"a", "b"}, batch_).value(), fresh));
    forget_memory();
  }
}

TEST_F(CallTest, of_a_scope_that_is_switched_off_is_bypassed_and_counted_once) {
  store("a", 5);
  configure({{"verify_share", "1"}});
  for (int i = 0; i < 3; ++i) finish(*run_of("a", input_), at::full({}, 6.0 + i));
  const auto is_bypassed = [&](testing::OwnCall call) {
    const Begun begun = call.begin();
    return !begun.value.has_value() && begun.run == nullptr;
  };
  EXPECT_TRUE(is_bypassed(call_of("b", input_)));
  EXPECT_EQ(stat("bypassed_verify"), 1);
  EXPECT_TRUE(is_bypassed(call_of(Names{"x", "y"}, batch_)));
  EXPECT_EQ(stat("bypassed_verify"), 3);
  EXPECT_TRUE(is_bypassed(call_of(Names{"x", "x"}, batch_))) << "one key for different rows";
  EXPECT_EQ(stat("bypassed_verify"), 5);
  EXPECT_EQ(stat("key_conflicts"), 0);
  CallParts other = parts_of(input_);
  other.scope = "another";
  EXPECT_FALSE(is_bypassed(testing::OwnCall(other, CallKeys::whole("b"))));
  configure({{"verify_share", "0"}});
  EXPECT_FALSE(is_bypassed(call_of("b", input_)));
}

}  // namespace
}  // namespace modcache::module
