// SPDX-License-Identifier: Apache-2.0
#include "cache/conflict_watch.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/clock.h"

namespace modcache::cache {
namespace {

constexpr std::int64_t kBefore = 1;  // long before this process
std::int64_t just_stored() { return std::numeric_limits<std::int64_t>::max(); }

TEST(ConflictWatchTest, StoresAfterOneConflictPerKey) {
  ConflictWatch watch;
  for (int i = 0; i < 100'000; ++i) watch.record_conflict("s", kBefore);
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, StopsAfterConflictsWithNewEntries) {
  ConflictWatch watch;
  for (int i = 0; i < ConflictWatch::kMaxRepeated; ++i) watch.record_conflict("s", just_stored());
  EXPECT_FALSE(watch.has_stopped_storing("s")) << "the first is no repetition";
  watch.record_conflict("s", just_stored());
  EXPECT_TRUE(watch.has_stopped_storing("s"));
  EXPECT_FALSE(watch.has_stopped_storing("another"));
}

TEST(ConflictWatchTest, StoresWhileMostKeysMatch) {
  ConflictWatch watch;
  for (int i = 0; i < 5000; ++i) {
    watch.record_conflict("s", just_stored());
    watch.record_matches("s", 9);
  }
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, ForgetAllowsStoring) {
  ConflictWatch watch;
  for (int i = 0; i < 1000; ++i) watch.record_conflict("s", just_stored());
  EXPECT_TRUE(watch.has_stopped_storing("s"));
  watch.forget();
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, SamplesFirstCostlyInputsThenAShare) {
  ConflictWatch watch;
  for (std::uint64_t i = 0; i < ConflictWatch::kFirstCostlyCalls; ++i) {
    EXPECT_TRUE(watch.samples_costly_input("s"));
  }
  int sampled = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (watch.samples_costly_input("s")) ++sampled;
  }
  EXPECT_NEAR(sampled, 200, 10);
}

TEST(ConflictWatchTest, HoldsABoundedNumberOfScopes) {
  ConflictWatch watch;
  for (int i = 0; i < 5000; ++i) watch.record_conflict("scope " + std::to_string(i), kBefore);
  EXPECT_FALSE(watch.has_stopped_storing("scope 1"));
}

TEST(ConflictWatchTest, OneOfManyScopesStopsAlone) {
  ConflictWatch watch;
  for (int i = 0; i < 1000; ++i) watch.record_conflict("s", just_stored());
  ASSERT_TRUE(watch.has_stopped_storing("s"));
  for (int i = 0; i < 5000; ++i) {
    const std::string other = "scope " + std::to_string(i);
    watch.record_conflict(other, kBefore);
    EXPECT_FALSE(watch.has_stopped_storing(other)) << other;
  }
}

}  // namespace
}  // namespace modcache::cache
