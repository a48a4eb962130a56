// SPDX-License-Identifier: Apache-2.0
//
// The calls that a lowered graph makes, made here by hand.
#include "module/lowered/lowered.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/module_fixture.h"
#include "support/value_tensors.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Mode;
using ::testing::HasSubstr;

class LoweredTest : public testing::ModuleTest {
 protected:
  static LoweredConstants constants() {
    LoweredConstants constants;
    constants.identity.fingerprint = "f1";
    constants.method = "forward";
    constants.class_name = "Encoder";
    constants.declared = {"Encoder.forward", c10::TensorType::get()};
    return constants;
  }
  static IValue no_attributes() { return testing::tuple_of({}); }
  static void run(LoweredCall& call, const at::Tensor& result,
                  const LoweredCall::States& states = {1, 1},
                  const std::string& fingerprint = "f1") {
    ASSERT_TRUE(call.must_run());
    call.begin_run(fingerprint, no_attributes());
    call.finish_run(result, states);
    EXPECT_FALSE(call.must_run());
    EXPECT_TRUE(call.is_last_run());
  }
  LoweredCall call_of(const LoweredConstants& constants) const {
    return {constants, input_, CallKeys::whole("a")};
  }
  LoweredCall call() const { return call_of(constants()); }
  bool is_hit(const LoweredConstants& constants) const { return !call_of(constants).must_run(); }
  void store(const at::Tensor& result) const {
    LoweredCall miss = call();
    run(miss, result);
  }

  const at::Tensor input_ = at::ones({3});
};

TEST_F(LoweredTest, a_call_is_a_hit_once_a_run_was_kept) {
  store(at::full({2}, 5.0));
  LoweredCall hit = call();
  ASSERT_FALSE(hit.must_run());
  EXPECT_FALSE(hit.is_last_run());
  EXPECT_TRUE(at::equal(hit.value().toTensor(), at::full({2}, 5.0)));
}

TEST_F(LoweredTest, the_scope_of_the_site_goes_before_the_fingerprint) {
  LoweredConstants named = constants();
  named.scope = "encoder@1";
  LoweredCall call = call_of(named);
  run(call, at::ones({2}));
  EXPECT_FALSE(is_hit(constants()));
  named.identity.fingerprint = "of other weights";
  EXPECT_TRUE(is_hit(named));
}

TEST_F(LoweredTest, a_module_that_is_not_known_is_run_uncached) {
  LoweredConstants unknown = constants();
  unknown.identity.fingerprint.clear();
  LoweredCall call = call_of(unknown);
  run(call, at::ones({2}), {1, 1}, "");
  EXPECT_EQ(stat("bypassed_identity"), 1);
  EXPECT_EQ(stat("stored"), 0);
}

TEST_F(LoweredTest, what_other_weights_gave_is_not_kept) {
  LoweredCall call = this->call();
  run(call, at::ones({2}), {1, 1}, "f2");
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("bypassed_impure"), 1);
}

TEST_F(LoweredTest, what_changed_an_attribute_is_not_kept) {
  LoweredCall call = this->call();
  run(call, at::ones({2}), {1, 2});
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(stat("bypassed_impure"), 1);
}

TEST_F(LoweredTest, a_structured_result_is_the_callers_mistake_where_a_tensor_is_wanted) {
  LoweredCall call = this->call();
  call.begin_run("f1", no_attributes());
  EXPECT_THAT(
      [&] {
        call.finish_run(testing::tuple_of({input_, 1}), {1, 1});
      },
      ::testing::ThrowsMessage<c10::Error>(HasSubstr("Encoder.forward returned")));
}

TEST_F(LoweredTest, a_hit_of_another_type_is_run_and_replaced) {
  store(at::ones({2}));
  LoweredConstants of_pairs = constants();
  of_pairs.declared = {"Encoder.forward",
                       c10::TupleType::create({c10::TensorType::get(), c10::IntType::get()}),
                       Want::kAny};
  LoweredCall call = call_of(of_pairs);
  ASSERT_TRUE(call.must_run());
  call.begin_run("f1", no_attributes());
  call.finish_run(testing::tuple_of({input_, 1}), {1, 1});
  LoweredCall again = call_of(of_pairs);
  ASSERT_FALSE(again.must_run());
  EXPECT_EQ(again.value().toTupleRef().elements()[1].toInt(), 1);
}

TEST_F(LoweredTest, a_call_is_run_uncached_while_the_mode_is_off) {
  store(at::ones({2}));
  set_mode(Mode::kOff);
  EXPECT_FALSE(is_hit(constants()));
  EXPECT_EQ(stat("bypassed_off"), 1);
}

class LoweredRowsTest : public LoweredTest {
 protected:
  using Keys = std::vector<std::string_view>;

  // What the graph does with a module that is x * 10; `runs_` are the numbers of rows it was given.
  at::Tensor numbers(const std::vector<float>& input, const Keys& keys) {
    LoweredCall call(constants(), at::tensor(input), CallKeys(keys));
    at::Tensor last;
    runs_.clear();
    while (call.must_run()) {
      const at::Tensor rows = call.begin_run("f1", no_attributes()).toTensor();
      runs_.push_back(rows.size(0));
      last = rows * 10;
      call.finish_run(last, {1, 1});
    }
    return call.is_last_run() ? last : call.value().toTensor();
  }

  std::vector<std::int64_t> runs_;
};

TEST_F(LoweredRowsTest, only_missing_rows_are_run) {
  EXPECT_TRUE(at::equal(numbers({1, 2}, {"a", "b"}), at::tensor({10.0F, 20.0F})));
  EXPECT_THAT(runs_, ::testing::ElementsAre(2, 2)) << "a check run of the same shape";
  EXPECT_TRUE(at::equal(numbers({3, 1}, {"c", "a"}), at::tensor({30.0F, 10.0F})));
  EXPECT_THAT(runs_, ::testing::ElementsAre(1));
  EXPECT_TRUE(at::equal(numbers({2, 1, 2}, {"b", "a", "b"}), at::tensor({20.0F, 10.0F, 20.0F})));
  EXPECT_THAT(runs_, ::testing::ElementsAre());
}

TEST_F(LoweredRowsTest, an_empty_batch_and_one_under_off_are_run_as_they_are) {
  EXPECT_EQ(numbers({}, {}).size(0), 0);
  EXPECT_THAT(runs_, ::testing::ElementsAre(0));
  set_mode(Mode::kOff);
  EXPECT_TRUE(at::equal(numbers({1, 2}, {"a", "a"}), at::tensor({10.0F, 20.0F})));
  EXPECT_EQ(stat("bypassed_off"), 2);
}

TEST_F(LoweredRowsTest, as_many_rows_as_keys_are_wanted) {
  EXPECT_THROW(LoweredCall(constants(), at::ones({3}), CallKeys({"a"})), c10::Error);
}

}  // namespace
}  // namespace modcache::module
