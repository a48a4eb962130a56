// SPDX-License-Identifier: Apache-2.0
#include "module/call/fast_path.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "module/call/call.h"
#include "module/call/rows_call.h"
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
  std::optional<at::Tensor> found(const std::string& key, const at::IValue& input) const {
    const FastCall call{scope_, method_, input, key};
    return find_on_fast_path(call, plain_input(call).value(), cache::Mode::kOn).value;
  }
  std::optional<tensor::InputSummary> summary(const at::IValue& input) const {
    return plain_input({scope_, method_, input, key_});
  }
  std::optional<at::Tensor> found_rows(const std::vector<std::string_view>& keys,
                                       const at::IValue& input) const {
    const std::string none;
    const BatchKeys rows(keys);
    const FastCall question{scope_, method_, input, none, &rows};
    auto summary = plain_input(question);
    if (!summary.has_value()) return std::nullopt;
    return find_on_fast_path(question, *std::move(summary), cache::Mode::kOn).value;
  }
  void store_rows(const std::vector<std::string_view>& keys, const at::Tensor& input,
                  const tensor::Flat& result) const {
    RowsCall rows(parts_of(input, tensor::Per::kRow), BatchKeys(keys));
    rows.trust_rows();
    (void)rows.next_rows();
    rows.begin_run();
    rows.finish_run(result, RunFacts{});
  }
  std::optional<at::Tensor> found(const std::string& key) const { return found(key, input_); }

  const std::string scope_ = "encoder@1";
  const std::string method_ = "forward";
  const std::string key_ = "a";
  const at::Tensor input_ = at::ones({3});
  const at::Tensor batch_ = at::arange(6, at::kFloat).view({2, 3});
};

TEST_F(FastPathTest, answers_that_calls_of_a_scope_that_is_switched_off_are_bypassed) {
  const auto ask = [&](const std::string& scope) {
    const FastCall call{scope, method_, input_, key_};
    return find_on_fast_path(call, plain_input(call).value(), cache::Mode::kOn);
  };
  EXPECT_FALSE(ask(scope_).is_bypassed);
  const cache::SessionPtr session = cache::Cache::instance().session();
  cache::ContextParts parts;
  parts.scope = scope_;
  const cache::ContextPtr context = cache::make_context(parts);
  for (int i = 0; i < 3; ++i) {
    session->note_verified({context, key_, {}}, "Encoder.forward", "all of it", true);
  }
  EXPECT_TRUE(ask(scope_).is_bypassed);
  EXPECT_EQ(stat("bypassed_verify"), 1);
  EXPECT_FALSE(ask("another").is_bypassed);
  configure({{"verify_share", "0"}});
  EXPECT_FALSE(ask(scope_).is_bypassed);
}

TEST_F(FastPathTest, leaves_a_hit_that_is_to_be_compared_to_the_call) {
  store("a", tensor::flatten(at::ones({2})));
  configure({{"verify_share", "1"}});
  EXPECT_FALSE(found("a").has_value());
  EXPECT_EQ(stat("hits_memory"), 0);
  configure({{"verify_share", "0"}});
  EXPECT_TRUE(found("a").has_value());
}

TEST(FastPathOpenTest, it_is_open_where_a_stored_value_may_be_returned_without_a_run) {
  for (const Mode mode : {Mode::kOn, Mode::kRead}) {
    EXPECT_TRUE(fast_path_is_open(mode));
  }
  for (const Mode mode : {Mode::kOff, Mode::kRefresh, Mode::kVerify}) {
    EXPECT_FALSE(fast_path_is_open(mode));
  }
}

TEST_F(FastPathTest, takes_an_input_that_requires_no_grad_and_can_be_cached) {
  EXPECT_EQ(summary(input_)->signature, "float32[3]");
  EXPECT_FALSE(summary(input_.to_sparse()).has_value());
  const at::Tensor requires_grad = at::ones({3}).requires_grad_();
  EXPECT_FALSE(summary(requires_grad).has_value());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(summary(requires_grad).has_value());
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
  EXPECT_FALSE(found("pair").has_value()) << "a structured value on disk";
  EXPECT_EQ(stat("hits_memory"), 0);
  EXPECT_EQ(stat("hits_disk"), 0);
  EXPECT_EQ(stat("key_conflicts"), 0);
}

TEST_F(FastPathTest, finds_what_only_the_directory_has_and_brings_it_into_memory) {
  store("a", tensor::flatten(at::full({2}, 5.0)));
  forget_memory();
  EXPECT_TRUE(at::equal(found("a").value(), at::full({2}, 5.0)));
  EXPECT_EQ(stat("hits_disk"), 1);
  EXPECT_TRUE(found("a").has_value());
  EXPECT_EQ(stat("hits_memory"), 1);
}

TEST_F(FastPathTest, puts_the_rows_of_a_batch_together_wherever_they_are) {
  store_rows({"a", "b"}, batch_, tensor::flatten(batch_ * 2));
  for (const char* const counter : {"hits_memory", "hits_disk"}) {
    const auto rows = found_rows({"b", "a"}, batch_.flip({0}));
    ASSERT_TRUE(rows.has_value()) << counter;
    EXPECT_TRUE(at::equal(*rows, (batch_ * 2).flip({0})));
    EXPECT_EQ(stat(counter), 2);
    forget_memory();
  }
}

TEST_F(FastPathTest, finds_one_row_as_it_finds_many) {
  const at::Tensor wide = at::arange(24, at::kFloat).view({2, 2, 3, 2});
  const std::vector<at::Tensor> results = {batch_ * 2, at::ones({2}, at::kBool),
                                           wide.contiguous(at::MemoryFormat::ChannelsLast),
                                           at::empty({2, 0})};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string first = std::to_string(i) + "a", second = std::to_string(i) + "b";
    store_rows({first, second}, batch_, tensor::flatten(results[i]));
    for (std::int64_t row = 0; row < 2; ++row) {
      const std::string& key = row == 0 ? first : second;
      const at::Tensor expected = results[i].narrow(0, row, 1);
      for (int turn = 0; turn < 2; ++turn) {
        const auto one = found_rows({key}, batch_.narrow(0, row, 1));
        ASSERT_TRUE(one.has_value()) << key;
        testing::expect_same(*one, expected);
        one->zero_();
      }
      EXPECT_FALSE(found_rows({key}, batch_.narrow(0, 1 - row, 1)).has_value()) << "another input";
    }
  }
  EXPECT_EQ(stat("hits_memory"), 16);
  EXPECT_EQ(stat("hits_disk"), 0);
}

TEST_F(FastPathTest, answers_nothing_for_rows_that_are_no_plain_hit_and_counts_nothing) {
  store_rows({"a", "b"}, batch_, tensor::flatten(batch_ * 2));
  store_rows({"c", "d"}, batch_, testing::flat_of({batch_, batch_}));
  store_rows({"long"}, batch_.narrow(0, 0, 1), tensor::flatten(at::ones({1, 9})));
  EXPECT_FALSE(found_rows({"a", "absent"}, batch_).has_value());
  EXPECT_FALSE(found_rows({"a", "a"}, batch_).has_value()) << "one key twice";
  EXPECT_FALSE(found_rows({"a"}, batch_).has_value()) << "not one row for each key";
  EXPECT_FALSE(found_rows({"c", "d"}, batch_).has_value()) << "structured values";
  EXPECT_FALSE(found_rows({"b", "a"}, batch_).has_value()) << "other inputs";
  EXPECT_FALSE(found_rows({"long", "b"}, batch_).has_value()) << "rows of two lengths";
  EXPECT_EQ(stat("hits_memory"), 0);
  EXPECT_EQ(stat("hits_disk"), 0);
  EXPECT_EQ(stat("key_conflicts"), 0);
}

}  // namespace
}  // namespace modcache::module
