// SPDX-License-Identifier: Apache-2.0
#include "module/watch/rotating_read.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace modcache::module {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kChunk = static_cast<std::int64_t>(RotatingRead::kChunkBytes);
// A gap between two calls that is long enough for one chunk.
constexpr milliseconds kGap{5};

at::Tensor bytes(std::int64_t count) { return at::zeros({count}, at::kByte); }

void write(const at::Tensor& tensor, std::int64_t at) { tensor.data_ptr<std::uint8_t>()[at] ^= 1; }

class RotatingReadTest : public ::testing::Test {
 protected:
  std::optional<std::size_t> call_after(RotatingRead::Clock::duration gap,
                                        RotatingRead::Clock::duration run = {}) {
    now_ += gap;
    return read_.find_change(now_, run);
  }
  // Returns the number of calls until a change is found; nothing if that takes more than `max`.
  std::optional<int> calls_until_found(int max) {
    for (int call = 1; call <= max; ++call) {
      if (call_after(kGap).has_value()) return call;
    }
    return std::nullopt;
  }

  RotatingRead::Clock::time_point now_{seconds(1000)};
  RotatingRead read_{now_};
};

TEST_F(RotatingReadTest, FindsAChangeOfAnyByteWithinOneTurn) {
  const at::Tensor tensor = bytes(3 * kChunk + 10);
  for (const std::int64_t at : {std::int64_t{0}, kChunk - 1, 2 * kChunk + 7, 3 * kChunk + 9}) {
    RotatingRead read(now_);
    read.add(0, tensor);
    ASSERT_EQ(read.num_chunks(), 4u);
    write(tensor, at);
    int calls = 1;
    while (!read.find_change(now_ += kGap).has_value()) ASSERT_LE(++calls, 4) << at;
    EXPECT_TRUE(read.has_changed());
    EXPECT_TRUE(read.find_change(now_).has_value()) << "it stays changed";
  }
}

TEST_F(RotatingReadTest, FindsNothingInUnchangedMemory) {
  const at::Tensor dense = bytes(2 * kChunk);
  const at::Tensor with_gaps = at::zeros({300, 64}).slice(1, 0, 64, 3);
  read_.add(0, dense);
  read_.add(1, with_gaps);
  EXPECT_EQ(calls_until_found(50), std::nullopt);
  EXPECT_FALSE(read_.has_changed());
}

TEST_F(RotatingReadTest, NamesTheTensorThatChanged) {
  const at::Tensor first = bytes(100);
  const at::Tensor other = bytes(100);
  read_.add(3, first);
  read_.add(7, other);
  write(other, 99);
  EXPECT_EQ(call_after(kGap), std::size_t{7});
}

TEST_F(RotatingReadTest, ReadsAtMostOneChunkPerCallWithoutARun) {
  const at::Tensor tensor = bytes(100 * kChunk);
  read_.add(0, tensor);
  (void)call_after(seconds(3600));
  EXPECT_EQ(read_.num_chunks_read(), 1u);
  (void)call_after(kGap);
  EXPECT_EQ(read_.num_chunks_read(), 2u);
}

TEST_F(RotatingReadTest, HoldsItsRateForCallsInQuickSuccession) {
  const at::Tensor tensor = bytes(100 * kChunk);
  read_.add(0, tensor);
  for (int call = 0; call < 10'000; ++call) (void)call_after(microseconds(10));
  EXPECT_NEAR(static_cast<double>(read_.num_chunks_read()) * kChunk,
              0.1 * RotatingRead::kBytesPerSecond, 2 * kChunk);
}

TEST_F(RotatingReadTest, HoldsItsRateForRuns) {
  const at::Tensor tensor = bytes(1000 * kChunk);
  for (const milliseconds run : {milliseconds(2), milliseconds(7), milliseconds(50)}) {
    RotatingRead read(now_);
    read.add(0, tensor);
    for (milliseconds spent{0}; spent < seconds(2); spent += run) {
      now_ += run;
      EXPECT_EQ(read.find_change(now_), std::nullopt);       // compares the module after the run
      EXPECT_EQ(read.find_change(now_, run), std::nullopt);  // and before its result is stored
    }
    const auto read_bytes = static_cast<double>(read.num_chunks_read()) * kChunk;
    EXPECT_LE(read_bytes, 2.05 * RotatingRead::kBytesPerSecond) << run.count();
    EXPECT_GE(read_bytes, 1.8 * RotatingRead::kBytesPerSecond) << run.count();
  }
}

TEST_F(RotatingReadTest, ReadsAtMostOneTurnAfterALongRun) {
  const at::Tensor tensor = bytes(10 * kChunk);
  read_.add(0, tensor);
  (void)call_after({}, std::chrono::hours(10));
  EXPECT_EQ(read_.num_chunks_read(), 10u);
}

TEST_F(RotatingReadTest, ReadsTheElementsOfATensorWithGapsAndNotTheGaps) {
  const at::Tensor memory = at::zeros({2048, 64});
  const at::Tensor tensor = memory.slice(1, 0, 64, 3);
  read_.add(0, tensor);
  EXPECT_GT(read_.num_chunks(), 1u) << "a large one is divided";
  memory.slice(1, 1, 64, 3).fill_(1);
  EXPECT_EQ(calls_until_found(100), std::nullopt);
  memory[2047][63] = 1;
  EXPECT_NE(calls_until_found(100), std::nullopt);
}

TEST_F(RotatingReadTest, ChargesMoreForGaps) {
  const at::Tensor dense = bytes(kChunk);
  const at::Tensor with_gaps = at::zeros({kChunk, 2}, at::kByte).select(1, 0);
  read_.add(0, with_gaps);
  read_.add(1, dense);
  for (int call = 0; call < 8; ++call) (void)call_after(kGap);
  EXPECT_EQ(read_.num_chunks_read(), 1u);
  (void)call_after(kGap);
  EXPECT_EQ(read_.num_chunks_read(), 2u);
}

TEST_F(RotatingReadTest, ReadsAnExpandedTensorOnce) {
  const at::Tensor one = at::zeros({1});
  read_.add(0, one.expand({100'000}));
  EXPECT_EQ(read_.num_chunks(), 1u);
  one.fill_(1);
  EXPECT_EQ(call_after(kGap), std::size_t{0});
}

TEST_F(RotatingReadTest, SkipsEmptyTensorsAndOtherDevices) {
  read_.add(0, bytes(0));
  read_.add(1, at::empty({3}, at::kMeta));
  EXPECT_EQ(read_.num_chunks(), 0u);
  EXPECT_EQ(call_after(kGap, seconds(1)), std::nullopt);
}

TEST_F(RotatingReadTest, AddFromTakesTheEarlierDigests) {
  const at::Tensor dense = bytes(kChunk + 1);
  const at::Tensor with_gaps = at::zeros({4, 6}).select(1, 2);
  RotatingRead before(now_);
  before.add(0, dense);
  before.add(1, with_gaps);
  with_gaps.fill_(1);
  read_.add_from(before, 1);
  read_.add_from(before, 7);  // is not in it
  EXPECT_EQ(read_.num_chunks(), 1u);
  EXPECT_EQ(call_after(kGap), std::size_t{1});
}

}  // namespace
}  // namespace modcache::module
