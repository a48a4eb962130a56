// SPDX-License-Identifier: Apache-2.0
#include "module/call/rules.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "module/watch/tensor_watch.h"
#include "support/module_fixture.h"
#include "tensor/tree.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

using cache::Mode;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RulesTest : public testing::ModuleTest {
 protected:
  // Whether a result may be stored that a run gave without doing anything else.
  bool may_store(const at::Tensor& result, const RunFacts& facts = {}) {
    return judged([] {}, result, facts);
  }
  template <typename Run>
  bool judged(Run run, const at::Tensor& result, const RunFacts& facts = {}) {
    Observation observed;
    run();
    observed.end();
    const auto refusal = refusal_of(parts_, tensor::flatten(result), facts, observed);
    cause_ = refusal.has_value() ? refusal->cause : "";
    message_ = refusal.has_value() ? refusal->message : "";
    if (refusal.has_value()) refuse(parts_, refusal->counter, 1, refusal->cause, refusal->message);
    return !refusal.has_value();
  }

  CallParts parts_ = parts_of(at::ones({3}));
  std::string cause_;
  std::string message_;
};

TEST_F(RulesTest, keeps_a_result_that_is_a_function_of_state_and_input) {
  EXPECT_TRUE(may_store(at::ones({2})));
  EXPECT_EQ(cause_, "");
}

TEST_F(RulesTest, refuses_a_result_that_requires_grad_and_says_how_many_tensors_do) {
  RunFacts facts;
  facts.requiring_grad = 2;
  EXPECT_FALSE(may_store(at::ones({2}).requires_grad_(), facts));
  EXPECT_EQ(cause_, "grad");
  EXPECT_THAT(message_, HasSubstr("2 tensors of Encoder require grad"));
  EXPECT_THAT(message_, HasSubstr("requires_grad_(False).eval()"));
  EXPECT_EQ(stat("bypassed_grad"), 1);
  facts.is_scripted = true;
  EXPECT_FALSE(may_store(at::ones({2}).requires_grad_(), facts));
  EXPECT_THAT(message_, HasSubstr("for p in m.parameters()"));
}

TEST_F(RulesTest, names_what_makes_a_result_require_grad_where_the_module_does_not) {
  const auto result = at::ones({2}).requires_grad_();
  EXPECT_FALSE(may_store(result));
  EXPECT_THAT(message_, HasSubstr("a hook, or its code, makes it so"));
  RunFacts facts;
  facts.is_checkpointed = true;
  EXPECT_FALSE(may_store(result, facts));
  EXPECT_THAT(message_, HasSubstr("gradient checkpointing is on"));
  parts_.input.requiring_grad.count = 1;
  EXPECT_FALSE(may_store(result, facts));
  EXPECT_THAT(message_, HasSubstr(": the input requires grad"));
}

TEST_F(RulesTest, names_training_mode_where_evaluation_mode_would_be_the_cure) {
  const auto draw = [] { (void)at::dropout(at::ones({4}), 0.5, /*train=*/true); };
  EXPECT_FALSE(judged(draw, at::ones({2})));
  EXPECT_THAT(message_, HasSubstr("no function of state and input"));
  RunFacts facts;
  facts.is_training = true;
  EXPECT_FALSE(judged(draw, at::ones({2}), facts));
  EXPECT_THAT(message_, StartsWith("not caching Encoder.forward: Encoder is in training mode"));
  EXPECT_FALSE(judged([] { (void)at::rand({1}); }, at::ones({2}), facts));
  EXPECT_THAT(message_, Not(HasSubstr("training mode")));
}

TEST_F(RulesTest, refuses_a_result_that_is_no_function_of_state_and_input) {
  RunFacts facts;
  facts.impure_because = "buffer 'count' changed during the run";
  EXPECT_FALSE(may_store(at::ones({2}), facts));
  EXPECT_EQ(cause_, "impure");
  EXPECT_THAT(message_, HasSubstr("buffer 'count' changed"));
  EXPECT_FALSE(judged([] { (void)at::rand({1}); }, at::ones({2})));
  EXPECT_THAT(message_, HasSubstr("aten::rand"));
  EXPECT_EQ(stat("bypassed_impure"), 2);
}

TEST_F(RulesTest, refuses_a_result_that_no_tier_can_hold) {
  EXPECT_FALSE(may_store(at::ones({2}).to_sparse()));
  EXPECT_EQ(cause_, "type");
  EXPECT_EQ(stat("bypassed_type"), 1);
  EXPECT_TRUE(may_store(at::ones({2})));
  EXPECT_EQ(cause_, "") << "that was the run before";
}

TEST_F(RulesTest, warns_of_a_cause_once_for_each_method) {
  for (const char* class_name : {"WarnedOf", "WarnedOf", "WarnedOfToo"}) {
    parts_.class_name = class_name;
    EXPECT_FALSE(may_store(at::ones({2}).to_sparse()));
  }
  EXPECT_EQ(log_.about("WarnedOf.forward").size(), 1u);
  EXPECT_EQ(log_.about("WarnedOfToo.forward").size(), 1u);
}

TEST_F(RulesTest, throws_under_strict) {
  configure({{"strict", "true"}});
  parts_ = parts_of(at::ones({3}));
  EXPECT_THROW((void)may_store(at::ones({2}).to_sparse()), c10::Error);
  EXPECT_EQ(cause_, "type");
  EXPECT_THROW(refuse_unidentified(parts_, 1, "why"), c10::Error);
}

TEST_F(RulesTest, a_call_is_bypassed_while_the_mode_is_off) {
  EXPECT_FALSE(is_bypassed_by_mode(parts_, 4));
  parts_.mode = Mode::kOff;
  EXPECT_TRUE(is_bypassed_by_mode(parts_, 4));
  EXPECT_EQ(stat("bypassed_off"), 4);
}

TEST_F(RulesTest, a_module_without_a_fingerprint_is_refused_with_the_cure) {
  parts_.class_name = "Unknown";
  refuse_unidentified(parts_, 2, "attribute 'a' is a torch.Generator");
  EXPECT_EQ(stat("bypassed_identity"), 2);
  EXPECT_THAT(log_.about("Unknown.forward").at(0), HasSubstr("scope=\"name@version\""));
}

TEST_F(RulesTest, an_input_that_cannot_be_cached_is_refused) {
  EXPECT_TRUE(read_input(parts_, tensor::summarize_input(at::ones({2, 3}), tensor::Per::kRow), 2));
  EXPECT_EQ(parts_.input.signature, "float32[3]");
  EXPECT_FALSE(read_input(parts_, tensor::summarize_input(at::ones({2}).to_sparse()), 2));
  EXPECT_EQ(stat("bypassed_type"), 2);
}

TEST_F(RulesTest, a_pattern_of_grad_is_0_only_where_nothing_requires_any) {
  const auto plain = tensor::summarize_input(at::ones({2}));
  const auto with_grad = tensor::summarize_input(at::ones({2}).requires_grad_());
  EXPECT_EQ(grad_pattern(0, plain), 0u);
  const std::set<std::uint64_t> patterns{0, grad_pattern(0, with_grad), grad_pattern(5, plain),
                                         grad_pattern(5, with_grad), grad_pattern(6, plain)};
  EXPECT_EQ(patterns.size(), 5u);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(grad_pattern(5, with_grad), 0u);
}

TEST_F(RulesTest, what_is_graph_free_is_so_for_its_scope_method_arguments_and_pattern) {
  parts_.scope = "graph-free@1";
  parts_.grad_pattern = 1;
  EXPECT_TRUE(is_grad_unknown(parts_));
  note_graph_free(parts_);
  EXPECT_FALSE(is_grad_unknown(parts_));
  CallParts other = parts_;
  other.scope = "graph-free@2";
  EXPECT_TRUE(is_grad_unknown(other));
  other = parts_;
  other.method = "encode";
  EXPECT_TRUE(is_grad_unknown(other));
  other = parts_;
  other.input.arguments = "i1;";
  EXPECT_TRUE(is_grad_unknown(other));
  other = parts_;
  other.grad_pattern = 2;
  EXPECT_TRUE(is_grad_unknown(other));
  other.grad_pattern = 0;
  EXPECT_FALSE(is_grad_unknown(other)) << "nothing requires grad";
}

TEST_F(RulesTest, weights_that_changed_without_a_trace_make_a_result_unfit) {
  const at::Tensor weight = at::ones({1000});
  EXPECT_TRUE(are_weights_unchanged(parts_, {}, 1)) << "no weights are known";
  parts_.weights = std::make_shared<const TensorWatch>(std::vector<at::Tensor>{weight},
                                                       TensorWatch::Hashing::kContents, nullptr);
  EXPECT_TRUE(are_weights_unchanged(parts_, {}, 1));
  weight.variable_data().mul_(2);
  EXPECT_FALSE(are_weights_unchanged(parts_, {}, 1));
  RunFacts facts;
  facts.weights = std::make_shared<const TensorWatch>(std::vector<at::Tensor>{weight},
                                                      TensorWatch::Hashing::kContents, nullptr);
  EXPECT_TRUE(are_weights_unchanged(parts_, facts, 1)) << "the module was loaded during the call";
}

TEST_F(RulesTest, compares_a_fresh_result_with_the_stored_value) {
  cache::Keys keys(parts_.context(tensor::Per::kCall), "train/1");
  keys.configuration = parts_.configuration;
  const tensor::Flat result = tensor::flatten(at::ones({2}));
  const auto same = [&] { return result; };
  const auto failing = []() -> tensor::Flat { throw std::runtime_error("no row"); };
  EXPECT_EQ(compare_with_stored(parts_, keys, 0, failing), Comparison::kNothingStored);
  auto value = tensor::WholeValue::copy_of(result, std::nullopt, parts_.settings().dtype);
  const cache::EntryPtr entries[] = {
      std::make_shared<const cache::Entry>(cache::Entry{std::move(value), "", 1})};
  ASSERT_EQ(parts_.cache->store(keys, entries), 1u);
  std::string difference = "not said";
  EXPECT_EQ(compare_with_stored(parts_, keys, 0, same, &difference), Comparison::kSame);
  EXPECT_EQ(difference, "");
  EXPECT_EQ(stat("verify_differences"), 0);
  const auto other = [] { return tensor::flatten(at::zeros({2})); };
  EXPECT_EQ(compare_with_stored(parts_, keys, 0, other, &difference), Comparison::kDifferent);
  EXPECT_NE(difference, "");
  EXPECT_EQ(stat("verified"), 0) << "that is for hits that were drawn";
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(log_.about("key 'train/1' of Encoder.forward").size(), 1u);
  EXPECT_EQ(compare_with_stored(parts_, keys, 0, failing), Comparison::kSame) << "the run goes on";
  EXPECT_EQ(stat("errors"), 1);
}

TEST_F(RulesTest, a_failure_is_counted_and_logged) {
  report_failure(parts_, "kept", std::runtime_error("no memory"));
  EXPECT_EQ(stat("errors"), 1);
  EXPECT_EQ(log_.about("could not be kept: no memory").size(), 1u);
}

}  // namespace
}  // namespace modcache::module
