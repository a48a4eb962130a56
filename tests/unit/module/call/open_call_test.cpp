// SPDX-License-Identifier: Apache-2.0
#include "module/call/open_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using cache::Mode;

// A call that is asked what its kinds are told.
class BareCall : public OpenCall {
 public:
  explicit BareCall(CallParts parts) : OpenCall(std::move(parts), tensor::Per::kCall) {}
  using OpenCall::count_run;
  using OpenCall::entry_of;
  using OpenCall::is_verified;
  using OpenCall::may_ever_store;
  using OpenCall::start_run;
};

class OpenCallTest : public testing::ModuleTest {
 protected:
  BareCall call() const { return BareCall(parts_of(input_)); }
  BareCall call_without_scope() const {
    CallParts parts = parts_of(input_);
    parts.scope.clear();
    return BareCall(std::move(parts));
  }

  const at::Tensor input_ = at::ones({3});
};

TEST_F(OpenCallTest, may_store_where_the_mode_writes_and_the_scope_is_known) {
  EXPECT_TRUE(call().may_ever_store());
  EXPECT_FALSE(call_without_scope().may_ever_store());
  set_mode(Mode::kRead);
  EXPECT_FALSE(call().may_ever_store());
  set_mode(Mode::kRefresh);
  EXPECT_TRUE(call().may_ever_store());
}

TEST_F(OpenCallTest, compares_with_what_is_stored_under_verify_alone) {
  EXPECT_FALSE(call().is_verified());
  set_mode(Mode::kRefresh);
  EXPECT_FALSE(call().is_verified()) << "it runs, and reads nothing";
  set_mode(Mode::kVerify);
  EXPECT_TRUE(call().is_verified());
  EXPECT_FALSE(call_without_scope().is_verified());
}

TEST_F(OpenCallTest, keeps_the_mode_that_it_began_with) {
  const BareCall began = call();
  set_mode(Mode::kRead);
  EXPECT_TRUE(began.may_ever_store());
}

TEST_F(OpenCallTest, counts_its_run_when_it_is_told_to) {
  BareCall counted = call();
  counted.start_run(std::chrono::steady_clock::now() - std::chrono::milliseconds(5));
  EXPECT_EQ(stat("misses"), 0);
  counted.abandon();
  counted.count_run(3);
  EXPECT_EQ(stat("misses"), 3);
  EXPECT_GE(stat("run_us"), 5000);
}

TEST_F(OpenCallTest, makes_entries) {
  const cache::EntryPtr entry = call().entry_of(nullptr, "(float32[2])", {}, /*run_us=*/7, nullptr);
  EXPECT_EQ(entry->signature, "(float32[2])");
  EXPECT_EQ(entry->run_us, 7);
}

}  // namespace
}  // namespace modcache::module
