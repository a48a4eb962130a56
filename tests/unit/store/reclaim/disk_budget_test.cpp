// SPDX-License-Identifier: Apache-2.0
//
// What a directory takes, as a process counts it that is one of several.
#include "store/reclaim/disk_budget.h"

#include <gtest/gtest.h>

#include <string>

#include "fs/posix_file_system.h"
#include "store/directory/notes.h"
#include "support/fault_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

TEST(DiskBudgetTest, counts_notes_that_follow_one_another_within_a_tick_of_the_file_system) {
  const testing::TemporaryDirectory place;
  testing::FaultFileSystem file_system(fs::posix_file_system());
  file_system.set_tick_ns(4'000'001);
  const Directory directory(file_system, place / "cache");
  ASSERT_TRUE(file_system.make_directories(directory.segments_path()).is_ok());
  DiskBudget budget(directory, 64 << 20);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(keep_note(directory, std::to_string(i), std::string(1000, 'n'), 1 << 20).is_ok());
    budget.measure();
    ASSERT_EQ(budget.used_bytes(), directory.size_bytes().value()) << "after note " << i;
  }
}

TEST(DiskBudgetTest, leaves_to_notes_what_entries_do_not_take) {
  const testing::TemporaryDirectory place;
  const Directory directory(fs::posix_file_system(), place / "cache");
  ASSERT_TRUE(fs::posix_file_system().make_directories(directory.segments_path()).is_ok());
  const std::uint64_t limit = DiskBudget::notes_limit(64 << 20);
  EXPECT_EQ(DiskBudget(directory, 64 << 20).most_notes_bytes(), limit);
  auto file =
      fs::posix_file_system().open(directory.segment_path(1), fs::OpenMode::kCreateExclusive);
  ASSERT_TRUE(file.value()->truncate((64 << 20) - 1000).is_ok());
  EXPECT_EQ(DiskBudget(directory, 64 << 20).most_notes_bytes(), 1000U);
}

}  // namespace
}  // namespace modcache::store
