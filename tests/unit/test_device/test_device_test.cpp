// SPDX-License-Identifier: Apache-2.0
//
// The test device itself (tests/support/test_device): it does what torch asks of an accelerator,
// and it bites where code forgets to wait, touches its memory, or frees memory too early.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/accelerator.h"

namespace modcache {
namespace {

using testing::current_stream;
using testing::HeldBack;
using testing::kDevice;
using testing::other_stream;
using testing::SlowedDown;
using testing::synchronize;

at::Tensor pinned(const at::Tensor& tensor) { return tensor.pin_memory(); }

TEST(TestDeviceDeathTest, a_touch_by_the_host_is_the_end_of_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor there = at::ones({4}, kDevice);
  EXPECT_EXIT((void)*static_cast<const volatile char*>(there.const_data_ptr()),
              ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(*static_cast<volatile char*>(there.data_ptr()) = 1,
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(TestDeviceTest, what_is_copied_there_comes_back) {
  for (const at::ScalarType dtype : {at::kFloat, at::kLong, at::kBool, at::kHalf}) {
    const at::Tensor here = at::arange(12).view({3, 4}).to(dtype);
    EXPECT_TRUE(here.to(kDevice).cpu().equal(here));
    EXPECT_TRUE(here.to(kDevice).t().contiguous().cpu().equal(here.t()));
    EXPECT_TRUE(here.to(kDevice).to(at::kDouble).cpu().equal(here.to(at::kDouble)));
  }
  const at::Tensor complex = at::complex(at::ones({3}), at::arange(3.0F));
  EXPECT_TRUE(complex.to(kDevice).conj().resolve_conj().cpu().equal(complex.conj()));
}

TEST(TestDeviceTest, other_operators_run_on_the_host_and_leave_their_results_there) {
  const at::Tensor x = at::arange(6.0F).view({2, 3});
  const at::Tensor product = at::mm(x.to(kDevice), x.t().to(kDevice));
  EXPECT_EQ(product.device(), kDevice);
  EXPECT_TRUE(product.cpu().equal(at::mm(x, x.t())));
}

TEST(TestDeviceTest, a_copy_that_is_not_waited_for_is_not_there_yet) {
  const at::Tensor source = pinned(at::ones({1000}));
  const at::Tensor target = at::zeros({1000}, kDevice);
  synchronize();
  const c10::Stream side = other_stream();
  c10::Event copied(kDevice.type());
  {
    const HeldBack held(side);
    {
      const c10::StreamGuard guard(side);
      target.copy_(source, /*non_blocking=*/true);
      copied.record(side);
    }
    EXPECT_FALSE(copied.query());
    EXPECT_TRUE(target.cpu().equal(at::zeros({1000})));
    copied.block(current_stream());
  }
  EXPECT_TRUE(target.cpu().equal(at::ones({1000})));
  EXPECT_TRUE(copied.query());
}

TEST(TestDeviceTest, a_copy_to_the_host_that_is_not_waited_for_is_not_there_yet) {
  const at::Tensor source = at::ones({1000}, kDevice);
  const at::Tensor target = pinned(at::zeros({1000}));
  {
    const HeldBack held(current_stream());
    target.copy_(source, /*non_blocking=*/true);
    EXPECT_TRUE(target.equal(at::zeros({1000})));
  }
  synchronize();
  EXPECT_TRUE(target.equal(at::ones({1000})));
}

TEST(TestDeviceTest, work_may_be_put_off) {
  const at::Tensor target = at::zeros({1000}, kDevice);
  const SlowedDown slowly(200'000);
  c10::Event filled(kDevice.type());
  target.fill_(1);
  filled.record(current_stream());
  const bool was_done = filled.query();
  EXPECT_TRUE(target.cpu().equal(at::ones({1000})));
  EXPECT_FALSE(was_done);
}

TEST(TestDeviceTest, only_page_locked_memory_is_copied_beside_the_host) {
  const SlowedDown slowly(1000);
  at::Tensor source = at::ones({1000});
  const at::Tensor target = source.to(kDevice, /*non_blocking=*/true);
  source.zero_();
  EXPECT_TRUE(target.cpu().equal(at::ones({1000})));
}

// Reads `there` on another stream, later, and frees it at once.
at::Tensor read_later_and_freed(at::Tensor there, bool tells_the_allocator) {
  const c10::Stream owner = current_stream();
  const c10::Stream reader = other_stream();
  synchronize();
  at::Tensor read;
  {
    const HeldBack held(reader);
    const c10::StreamGuard guard(reader);
    read = there.clone();
    if (tells_the_allocator) there.record_stream(reader);
    there.reset();
    owner.synchronize();  // which spoils it
  }
  synchronize();
  return read.cpu();
}

TEST(TestDeviceTest, memory_that_another_stream_reads_is_spoiled_unless_the_allocator_knows) {
  EXPECT_FALSE(read_later_and_freed(at::ones({1000}, kDevice), false).equal(at::ones({1000})));
  EXPECT_TRUE(read_later_and_freed(at::ones({1000}, kDevice), true).equal(at::ones({1000})));
}

TEST(TestDeviceTest, memory_of_one_stream_may_be_freed_before_its_work_is_done) {
  at::Tensor twice;
  {
    const HeldBack held(current_stream());
    twice = at::ones({1000}, kDevice).clone();
  }
  EXPECT_TRUE(twice.cpu().equal(at::ones({1000})));
}

TEST(TestDeviceTest, page_locked_memory_is_not_reused_while_it_is_copied) {
  at::Tensor target;
  {
    at::Tensor source = pinned(at::ones({1000}));
    const HeldBack held(current_stream());
    target = source.to(kDevice, /*non_blocking=*/true);
    source.reset();
    pinned(at::zeros({1000}));
  }
  EXPECT_TRUE(target.cpu().equal(at::ones({1000})));
}

TEST(TestDeviceTest, it_tells_page_locked_memory) {
  EXPECT_TRUE(pinned(at::ones({3})).is_pinned());
  EXPECT_TRUE(pinned(at::ones({3}))[1].is_pinned());
  EXPECT_TRUE(at::empty({3}, at::TensorOptions().pinned_memory(true)).is_pinned());
  EXPECT_FALSE(at::ones({3}).is_pinned());
}

TEST(TestDeviceTest, the_two_devices_wait_for_each_other_when_they_copy) {
  const c10::Device second(kDevice.type(), 1);
  const SlowedDown slowly(1000);
  const at::Tensor there = pinned(at::ones({1000})).to(second, /*non_blocking=*/true);
  EXPECT_TRUE(there.to(kDevice, /*non_blocking=*/true).cpu().equal(at::ones({1000})));
}

TEST(TestDeviceTest, it_may_be_full) {
  EXPECT_THROW(at::empty({std::int64_t{9} << 30}, at::TensorOptions(kDevice).dtype(at::kByte)),
               c10::OutOfMemoryError);
  EXPECT_NO_THROW(at::ones({3}, kDevice));
}

TEST(TestDeviceTest, a_forked_child_is_refused_and_may_end) {
  at::Tensor there = at::ones({3}, kDevice);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      there.cpu();
    } catch (const std::exception&) {
      there.reset();
      ::_exit(7);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace modcache
