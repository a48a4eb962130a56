// SPDX-License-Identifier: Apache-2.0
#include "module/eager/eager.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

class EagerTest : public testing::ModuleTest {
 protected:
  static CallParts parts() { return parts_of(at::IValue()); }
  // What Python does: begins, runs x * 2 where it must, and finishes.
  at::Tensor call(const std::string& key) {
    Begun begun = begin_eager(parts(), CallKeys::whole(key), input_, 0);
    if (begun.value.has_value()) return tagged_value(*std::move(begun.value)).toTensor();
    ++runs_;
    const at::Tensor result = input_ * 2;
    if (begun.run != nullptr) begun.run->finish(tensor::flatten(result));
    return result;
  }

  const at::Tensor input_ = at::ones({3});
  int runs_ = 0;
};

TEST_F(EagerTest, runs_once_for_a_key) {
  EXPECT_TRUE(at::equal(call("a"), input_ * 2));
  EXPECT_TRUE(at::equal(call("a"), input_ * 2));
  EXPECT_EQ(runs_, 1);
  call("b");
  EXPECT_EQ(runs_, 2);
}

TEST_F(EagerTest, just_runs_while_the_mode_is_off) {
  set_mode(cache::Mode::kOff);
  const Begun begun = begin_eager(parts(), CallKeys::whole("a"), input_, 0);
  EXPECT_FALSE(begun.value.has_value());
  EXPECT_EQ(begun.run, nullptr);
  EXPECT_EQ(stat("bypassed_off"), 1);
}

TEST_F(EagerTest, runs_the_rows_that_are_missing) {
  const std::vector<std::string_view> keys{"a", "b", "a"};
  const at::Tensor input = at::ones({3, 2});
  CallParts trusted = parts();
  trusted.are_rows_trusted = true;
  const Begun begun = begin_eager(trusted, CallKeys(keys), input, 0);
  ASSERT_NE(begun.run, nullptr);
  EXPECT_EQ(begun.run->step()->rows, (std::vector<std::int64_t>{0, 1}));
  begun.run->finish(tensor::flatten(at::ones({2, 2}) * 2));
  EXPECT_EQ(begun.run->step(), nullptr);
  EXPECT_TRUE(at::equal(tagged_value(begun.run->value().value()).toTensor(), input * 2));
  EXPECT_TRUE(begin_eager(parts(), CallKeys(keys), input, 0).value.has_value());
}

TEST_F(EagerTest, rows_that_do_not_fit_together_are_a_tuple) {
  const std::vector<tensor::Flat> rows{tensor::flatten(at::ones({2})),
                                       tensor::flatten(at::ones({3}))};
  const at::IValue value = tagged_value(rows);
  EXPECT_EQ(value.toTupleRef().elements()[1].toTensor().size(0), 3);
}

TEST_F(EagerTest, refuses_another_number_of_rows) {
  EXPECT_THROW(begin_eager(parts(), CallKeys({"a", "b"}), at::ones({3, 2}), 0), c10::Error);
}

}  // namespace
}  // namespace modcache::module
