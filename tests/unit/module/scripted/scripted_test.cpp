// SPDX-License-Identifier: Apache-2.0
//
// Calls of TorchScript modules with one key and with one key per row: call.h, run.h and rules.h by
// way of scripted.h.
#include "module/scripted/scripted.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <utility>
#include <vector>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Mode;
using ::testing::HasSubstr;
using torch::jit::Module;

constexpr const char* kTimes100 = "def forward(self, x):\n  return x * 100\n";
// Stored rows are told from what it returns now.
constexpr const char* kTimes100Plus1 = "def forward(self, x):\n  return x * 100 + 1\n";

Module module_of(const std::string& code) {
  Module module("__torch__.Encoder");
  module.define(code);
  return module;
}

class ScriptedTest : public testing::ModuleTest {
 protected:
  ScriptedTest() { configure({{"match", "none"}}); }

  IValue call(const Module& module, const IValue& input, const std::string& key,
              Want want = Want::kTensor) const {
    const IValue object = module._ivalue();
    return lookup_or_run({object, input, scope_, method_, want}, CallKeys::whole(key));
  }
  // Sets are_apart_.
  IValue rows(const Module& module, const IValue& input, const std::vector<std::string_view>& keys,
              Want want = Want::kTensor) {
    const IValue object = module._ivalue();
    are_apart_ = false;
    return lookup_or_run({object, input, scope_, method_, want}, CallKeys(keys), &are_apart_);
  }
  // [B] numbers in, [B] out.
  std::vector<double> numbers(const Module& module, const std::vector<double>& input,
                              const std::vector<std::string_view>& keys) {
    const at::Tensor out =
        rows(module, at::tensor(input, at::kDouble), keys).toTensor().contiguous();
    return {out.data_ptr<double>(), out.data_ptr<double>() + out.numel()};
  }

  const std::string scope_ = "scope";
  const std::string method_ = "forward";
  using Numbers = std::vector<double>;
  bool are_apart_ = false;
};

// ----- one key per row

TEST_F(ScriptedTest, only_missing_rows_are_run_and_all_come_back_in_order) {
  EXPECT_EQ(numbers(module_of(kTimes100), {1, 2, 3}, {"a", "b", "c"}), (Numbers{100, 200, 300}));
  const Module later = module_of(kTimes100Plus1);
  EXPECT_EQ(numbers(later, {3, 9, 1}, {"c", "x", "a"}), (Numbers{300, 901, 100}));
  EXPECT_EQ(stat("misses"), 4);
  EXPECT_EQ(stat("hits_memory"), 2);
  forget_memory();
  EXPECT_EQ(numbers(later, {9, 7, 2, 8}, {"x", "y", "b", "z"}), (Numbers{901, 701, 200, 801}));
  EXPECT_EQ(stat("hits_disk"), 2);
}

TEST_F(ScriptedTest, a_batch_of_hits_runs_nothing) {
  const Module module = module_of(kTimes100);
  const Module raises = module_of("def forward(self, x):\n  assert False\n  return x\n");
  (void)numbers(module, {1, 2}, {"a", "b"});
  for (const char* codec : {"none", "zstd"}) {
    configure({{"codec", codec}});
    EXPECT_EQ(numbers(raises, {2, 1, 2}, {"b", "a", "b"}), (Numbers{200, 100, 200}));
    forget_memory();
  }
  EXPECT_EQ(numbers(raises, {2, 1}, {"b", "a"}), (Numbers{200, 100}));
}

TEST_F(ScriptedTest, ids_find_what_was_stored_under_their_texts) {
  const Module module = module_of(kTimes100);
  (void)numbers(module, {1, 2}, {"7", "-3"});
  const IValue object = module._ivalue();
  const std::vector<std::int64_t> ids{-3, 7};
  const IValue input = at::tensor({2.0, 1.0}, at::kDouble);
  const IValue found = lookup_or_run({object, input, scope_, method_, Want::kTensor},
                                     CallKeys::of_ids(ids.data(), ids.size()));
  EXPECT_TRUE(at::equal(found.toTensor(), at::tensor({200.0, 100.0}, at::kDouble)));
}

TEST_F(ScriptedTest, rows_stored_under_another_dtype_setting_serve_the_same_batch) {
  const Module third = module_of("def forward(self, x):\n  return x / 3\n");
  configure({{"dtype", "float16"}});
  (void)rows(third, at::tensor({1.0, 1e6}, at::kFloat), {"a", "b"});
  (void)rows(third, at::tensor({1.0}, at::kFloat), {"c"});
  configure({{"dtype", "keep"}});
  (void)rows(third, at::tensor({1.0}, at::kFloat), {"d"});
  for (int tier = 0; tier < 2; ++tier) {
    const at::Tensor out =
        rows(third, at::tensor({1.0, 1.0, 1.0, 1e6}, at::kFloat), {"c", "a", "d", "b"}).toTensor();
    const at::Tensor exact = at::tensor({1.0, 1.0, 1.0, 1e6}, at::kFloat) / 3;
    EXPECT_EQ(out[0].item<float>(), exact[0].to(at::kHalf).item<float>());
    EXPECT_TRUE(at::equal(out.slice(0, 1), exact.slice(0, 1)));
    forget_memory();
  }
}

TEST_F(ScriptedTest, a_batch_whose_rows_do_not_fit_runs_whole_and_comes_apart_as_any) {
  configure({{"match", "none"}});
  const Module module = module_of("def forward(self, x):\n  return x + 0\n");
  (void)rows(module, at::arange(3.0).unsqueeze(0), {"three"});
  (void)rows(module, at::arange(2.0).unsqueeze(0), {"two"});
  const at::Tensor input = at::ones({3, 2});
  EXPECT_TRUE(at::equal(rows(module, input, {"two", "new", "three"}).toTensor(), input));
  EXPECT_EQ(stat("bypassed_rows"), 3);
  const IValue value = rows(module, input, {"two", "new", "three"}, Want::kAny);
  const auto any = value.toListRef();
  EXPECT_TRUE(are_apart_);
  EXPECT_EQ(any[0].toTensor().size(0), 2);
  EXPECT_EQ(any[1].toTensor().size(0), 2);
  EXPECT_EQ(any[2].toTensor().size(0), 3);
}

TEST_F(ScriptedTest, a_result_without_the_rows_is_given_and_not_stored) {
  const at::Tensor input = at::arange(6.0).reshape({2, 3});
  for (const char* code : {"def forward(self, x):\n  return x.sum()\n",
                           "def forward(self, x):\n  return x.t().contiguous()\n"}) {
    const Module module = module_of(code);
    const at::Tensor given = rows(module, input, {"a", "b"}).toTensor();
    EXPECT_TRUE(at::equal(given, torch::jit::Module(module).forward({input}).toTensor()));
  }
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("misses"), 0);
  EXPECT_EQ(stat("bypassed_rows"), 4);
}

TEST_F(ScriptedTest, counts_of_keys_and_rows_must_agree_before_anything_runs) {
  const Module raises = module_of("def forward(self, x):\n  assert False\n  return x\n");
  try {
    (void)rows(raises, at::ones({2, 3}), {"a", "b", "c"});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("3 keys"));
  }
}

TEST_F(ScriptedTest, an_empty_batch_is_what_the_module_returns_for_it) {
  const Module module = module_of("def forward(self, x):\n  return torch.cat([x, x], dim=1)\n");
  EXPECT_EQ(rows(module, at::ones({0, 3}), {}).toTensor().sizes(),
            (std::vector<std::int64_t>{0, 6}));
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(ScriptedTest, a_result_that_cannot_be_stored_passes_through_with_repeated_keys_too) {
  const Module sparse = module_of("def forward(self, x):\n  return x.to_sparse()\n");
  const at::Tensor input = at::ones({3, 2});
  const IValue out = rows(sparse, input, {"a", "b", "a"});
  ASSERT_TRUE(out.toTensor().is_sparse());
  EXPECT_TRUE(at::equal(out.toTensor().to_dense(), input));
  EXPECT_EQ(stat("bypassed_type"), 3);
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(ScriptedTest, an_exception_of_the_module_passes_and_leaves_the_keys_free) {
  const Module picky = module_of(
      "def forward(self, x):\n  assert bool((x < 5).all()), 'too large'\n  return x + 1\n");
  EXPECT_EQ(numbers(picky, {1}, {"a"}), (Numbers{2}));
  EXPECT_THROW((void)numbers(picky, {1, 9}, {"a", "b"}), std::exception);
  EXPECT_EQ(stat("stored"), 1);
  EXPECT_EQ(numbers(picky, {1, 2}, {"a", "b"}), (Numbers{2, 3}));
}

TEST_F(ScriptedTest, a_result_that_requires_grad_is_not_stored_and_keeps_its_graph) {
  const Module module = module_of(kTimes100);
  const at::Tensor input = at::ones({3}).requires_grad_();
  for (int turn = 0; turn < 2; ++turn) {
    const at::Tensor out = rows(module, input, {"a", "b", "a"}).toTensor();
    EXPECT_TRUE(out.requires_grad());
    out.sum().backward();
  }
  EXPECT_TRUE(at::equal(input.grad(), at::full({3}, 200.0)));
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("bypassed_grad"), 6);
}

TEST_F(ScriptedTest, what_a_caller_writes_into_a_batch_changes_no_later_hit) {
  const Module module = module_of(kTimes100);
  for (int turn = 0; turn < 3; ++turn) {
    at::Tensor out = rows(module, at::tensor({1.0, 2.0}), {"a", "b"}).toTensor();
    EXPECT_EQ(out[0].item<double>(), 100);
    out.fill_(-1);
    if (turn == 1) forget_memory();
  }
}

// ----- modes

TEST_F(ScriptedTest, verify_compares_each_row_and_returns_the_fresh_result) {
  (void)numbers(module_of(kTimes100), {1, 2, 3}, {"a", "b", "c"});
  const Module other =
      module_of("def forward(self, x):\n  return torch.where(x > 1, x, x * 100)\n");
  set_mode(Mode::kVerify);
  EXPECT_EQ(numbers(other, {1, 2, 3, 4}, {"a", "b", "c", "d"}), (Numbers{100, 2, 3, 4}));
  EXPECT_EQ(stat("verify_differences"), 2);
  EXPECT_EQ(stat("stored"), 3);
  set_mode(Mode::kOn);
  EXPECT_EQ(numbers(other, {2}, {"b"}), (Numbers{200}));
}

TEST_F(ScriptedTest, verify_allows_for_what_a_dtype_setting_rounded) {
  configure({{"dtype", "float16"}});
  const Module third = module_of("def forward(self, x):\n  return x / 3\n");
  const IValue input = at::tensor({1.0, 1e-8, 70.0}, at::kFloat);
  (void)rows(third, input, {"a", "tiny", "c"});
  (void)call(third, input, "whole");
  set_mode(Mode::kVerify);
  (void)rows(third, input, {"a", "tiny", "c"});
  (void)call(third, input, "whole");
  EXPECT_EQ(stat("verify_differences"), 0);
}

// ----- structured values

constexpr const char* kStructured = R"(
def forward(self, x):
  result: Dict[str, Tuple[Tensor, List[int], Optional[Tensor]]] = {}
  empty: List[int] = []
  result["a"] = (x + 1, empty, None)
  result["b"] = (x + 2, [1, 2], x + 3)
  return result
)";

TEST_F(ScriptedTest, a_structured_result_has_one_type_on_a_miss_and_on_every_hit) {
  const Module module = module_of(kStructured);
  const IValue input = at::ones({2, 3});
  const IValue miss = call(module, input, "key", Want::kAny);
  const std::string type = "Dict[str, Tuple[Tensor, List[int], Optional[Tensor]]]";
  const auto type_of = [](const IValue& value) {
    return c10::unshapedType(value.type())->annotation_str();
  };
  EXPECT_EQ(type_of(miss), type);
  for (int tier = 0; tier < 2; ++tier) {
    const IValue hit = call(module, input, "key", Want::kAny);
    EXPECT_EQ(type_of(hit), type);
    const auto b = hit.toGenericDict().at("b").toTupleRef().elements().vec();
    EXPECT_TRUE(at::equal(b[0].toTensor(), at::full({2, 3}, 3.0)));
    EXPECT_EQ(b[1].toIntVector(), (std::vector<std::int64_t>{1, 2}));
    EXPECT_TRUE(at::equal(b[2].toTensor(), at::full({2, 3}, 4.0)));
    EXPECT_TRUE(hit.toGenericDict().at("a").toTupleRef().elements()[2].isNone());
    forget_memory();
  }
  EXPECT_EQ(stat("hits_memory"), 1);
  EXPECT_EQ(stat("hits_disk"), 1);
}

TEST_F(ScriptedTest, structured_rows_come_together_with_their_type) {
  const Module module = module_of(kStructured);
  const IValue input = at::arange(6, at::kFloat).view({3, 2});
  const IValue fresh = rows(module, input, {"a", "b", "c"}, Want::kAny);
  forget_memory();
  (void)rows(module, at::full({1, 2}, 9.0), {"d"}, Want::kAny);
  const IValue mixed_input =
      at::tensor({4.0, 5.0, 7.0, 7.0, 0.0, 1.0, 9.0, 9.0}, at::kFloat).view({4, 2});
  const IValue mixed = rows(module, mixed_input, {"c", "new", "a", "d"}, Want::kAny);
  EXPECT_EQ(*c10::unshapedType(mixed.type()), *c10::unshapedType(fresh.type()));
  const auto a = mixed.toGenericDict().at("a").toTupleRef().elements().vec();
  EXPECT_TRUE(at::equal(a[0].toTensor(), mixed_input.toTensor() + 1));
  EXPECT_TRUE(a[1].toIntVector().empty());
  EXPECT_EQ(stat("hits_disk"), 2);
  EXPECT_EQ(stat("hits_memory"), 1);
}

TEST_F(ScriptedTest, a_structured_result_in_the_tensor_form_names_the_other_operator) {
  const Module module = module_of(kStructured);
  const auto message = [&](const auto& run) -> std::string {
    try {
      (void)run();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  for (int turn = 0; turn < 2; ++turn) {  // on a miss, then on what would be a hit
    EXPECT_THAT(message([&] { return call(module, at::ones({2}), "key"); }),
                HasSubstr("lookup_or_run_any"));
    EXPECT_THAT(message([&] {
                  return rows(module, at::ones({2}), {"a", "b"});
                }),
                HasSubstr("lookup_or_run_any"));
    (void)call(module, at::ones({2}), "key", Want::kAny);
    (void)rows(module, at::ones({2}), {"a", "b"}, Want::kAny);
  }
}

TEST_F(ScriptedTest, what_is_stored_as_another_type_than_declared_is_computed_anew_and_replaced) {
  const IValue input = at::ones({2});
  (void)call(module_of("def forward(self, x):\n  return (x, 1)\n"), input, "key", Want::kAny);
  const Module other = module_of("def forward(self, x):\n  return (x, 'text')\n");
  EXPECT_EQ(call(other, input, "key", Want::kAny).toTupleRef().elements()[1].toStringRef(), "text");
  EXPECT_EQ(stat("key_conflicts"), 1);
  EXPECT_EQ(call(other, input, "key", Want::kAny).toTupleRef().elements()[1].toStringRef(), "text");
  EXPECT_EQ(stat("key_conflicts"), 1);
}

TEST_F(ScriptedTest, one_key_for_the_whole_and_one_for_a_row_are_different_entries) {
  const Module module = module_of(kTimes100);
  const IValue input = at::tensor({1.0}, at::kDouble);
  (void)call(module, input, "a");
  (void)rows(module, input, {"a"});
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_EQ(stat("stored"), 2);
}

}  // namespace
}  // namespace modcache::module
