// SPDX-License-Identifier: Apache-2.0
#include "cache/conflict_watch.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/clock.h"

namespace modcache::cache {
namespace {

constexpr std::int64_t kBefore = 1;  // long before this process
std::int64_t just_stored() { return std::numeric_limits<std::int64_t>::max(); }

TEST(ConflictWatchTest, a_scope_that_conflicts_once_for_each_key_goes_on_storing) {
  ConflictWatch watch;
  for (int i = 0; i < 100'000; ++i) watch.note_conflict("s", kBefore);
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, a_scope_that_conflicts_with_what_it_just_stored_stops) {
  ConflictWatch watch;
  for (int i = 0; i < ConflictWatch::kMostRepeated; ++i) watch.note_conflict("s", just_stored());
  EXPECT_FALSE(watch.has_stopped_storing("s")) << "the first is no repetition";
  watch.note_conflict("s", just_stored());
  EXPECT_TRUE(watch.has_stopped_storing("s"));
  EXPECT_FALSE(watch.has_stopped_storing("another"));
}

TEST(ConflictWatchTest, few_conflicts_among_many_agreements_stop_nothing) {
  ConflictWatch watch;
  for (int i = 0; i < 5000; ++i) {
    watch.note_conflict("s", just_stored());
    watch.note_agreements("s", 9);
  }
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, forgetting_begins_anew) {
  ConflictWatch watch;
  for (int i = 0; i < 1000; ++i) watch.note_conflict("s", just_stored());
  EXPECT_TRUE(watch.has_stopped_storing("s"));
  watch.forget();
  EXPECT_FALSE(watch.has_stopped_storing("s"));
}

TEST(ConflictWatchTest, costly_inputs_are_looked_at_first_and_then_for_a_share) {
  ConflictWatch watch;
  for (int i = 0; i < ConflictWatch::kFirstCostlyCalls; ++i) {
    EXPECT_TRUE(watch.looks_at_costly("s"));
  }
  int looked = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (watch.looks_at_costly("s")) ++looked;
  }
  EXPECT_NEAR(looked, 200, 60);
}

TEST(ConflictWatchTest, many_scopes_take_bounded_memory_and_are_learned_anew) {
  ConflictWatch watch;
  for (int i = 0; i < 5000; ++i) watch.note_conflict("scope " + std::to_string(i), kBefore);
  EXPECT_FALSE(watch.has_stopped_storing("scope 1"));
}

}  // namespace
}  // namespace modcache::cache
