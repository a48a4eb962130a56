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
    Begun begun = begin_eager(parts(), key, input_, 0);
    if (begun.next == Next::kReturn) return begun.value.toTensor();
    ++runs_;
    const at::Tensor result = input_ * 2;
    if (begun.next == Next::kRunAndFinish) {
      begun.run->call.finish_run(tensor::flatten(result), RunFacts{});
    }
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
  EXPECT_EQ(begin_eager(parts(), "a", input_, 0).next, Next::kJustRun);
}

TEST_F(EagerTest, runs_the_rows_that_are_missing) {
  const std::vector<std::string_view> keys{"a", "b", "a"};
  const at::Tensor input = at::ones({3, 2});
  RowsBegun begun = begin_eager_rows(parts(), BatchKeys(keys), input, 0);
  ASSERT_EQ(begun.next, Next::kRunAndFinish);
  EXPECT_EQ(begun.rows, (std::vector<std::int64_t>{0, 1}));
  begun.run->call.trust_rows();
  begun.run->call.finish_run(tensor::flatten(at::ones({2, 2}) * 2), RunFacts{});
  EXPECT_EQ(begun.run->call.next_rows(), std::nullopt);
  const TaggedRows rows = eager_rows(begun.run->call);
  EXPECT_TRUE(at::equal(rows.together.toTensor(), input * 2));
  EXPECT_EQ(begin_eager_rows(parts(), BatchKeys(keys), input, 0).next, Next::kReturn);
}

TEST_F(EagerTest, refuses_another_number_of_rows) {
  EXPECT_THROW(begin_eager_rows(parts(), BatchKeys({"a", "b"}), at::ones({3, 2}), 0), c10::Error);
}

}  // namespace
}  // namespace modcache::module
