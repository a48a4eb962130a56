// SPDX-License-Identifier: Apache-2.0
#include "store/commit/committer.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <optional>

#include "store/entry/clear.h"
#include "store/segment/tombstone.h"
#include "support/store_parts.h"

namespace modcache::store {
namespace {

using ::testing::HasSubstr;
using testing::StoreParts;

class CommitterTest : public testing::StorePartsTest {
 protected:
  // Appends a clear record, and returns the segment that it went to.
  std::uint64_t append_to_segment(Committer& committer) {
    MutexLock lock(committer.mutex());
    const Clear clear{{"scope", "key"}, 1};
    auto places = committer.segments().append({tombstone_of(clear)});
    return places.is_ok() ? places.value().front().segment : 0;
  }
  std::uint64_t segment_of(Committer& committer) {
    MutexLock lock(committer.mutex());
    return committer.segments().segment();
  }
};

TEST_F(CommitterTest, a_change_that_was_not_made_leaves_the_index_in_use) {
  StoreParts parts(options_);
  parts.mirror.prepare(0);
  const std::uint64_t removals = parts.attached.removals();
  {
    MutexLock lock(parts.committer.mutex());
    auto directory_lock = parts.committer.lock_directory();
    ASSERT_TRUE(directory_lock.is_ok());
    parts.committer.begin_removal();
    EXPECT_TRUE(parts.attached.control().is_removal_pending());
    parts.committer.undo(Status::busy("somebody else"));
  }
  EXPECT_FALSE(parts.attached.control().is_removal_pending());
  EXPECT_TRUE(parts.attached.index().has_all());
  EXPECT_EQ(parts.attached.removals(), removals);
}

// Nobody knows what became of it, so who has the lock next takes it for done.
TEST_F(CommitterTest, a_change_that_may_have_been_made_is_told_of_by_the_next_with_the_lock) {
  StoreParts parts(options_);
  parts.mirror.prepare(0);
  const std::uint64_t removals = parts.attached.removals();
  const std::uint64_t clears = parts.attached.control().clears();
  {
    MutexLock lock(parts.committer.mutex());
    auto directory_lock = parts.committer.lock_directory();
    ASSERT_TRUE(directory_lock.is_ok());
    parts.committer.begin_removal();
    parts.committer.undo(Status::io_error("the disk"));
  }
  EXPECT_TRUE(parts.attached.control().is_removal_pending());
  EXPECT_FALSE(parts.attached.index().has_all());
  parts.committer.look_for_untold_removals();
  EXPECT_FALSE(parts.attached.control().is_removal_pending());
  EXPECT_GT(parts.attached.removals(), removals);
  EXPECT_GT(parts.attached.control().clears(), clears);
}

TEST_F(CommitterTest, drops_an_entry_only_if_it_is_still_that_one) {
  fill(1);
  StoreParts parts(options_);
  const Sequence sequence = parts.attached.reader().find(context_.digest, "0").value().sequence;
  const std::uint64_t removals = parts.attached.removals();
  EXPECT_TRUE(parts.committer.drop({context_, "0"}, sequence + 1).is_ok());
  EXPECT_TRUE(parts.has_row(context_, "0"));
  EXPECT_EQ(parts.attached.removals(), removals);
  EXPECT_TRUE(parts.committer.drop({context_, "0"}, sequence).is_ok());
  EXPECT_FALSE(parts.has_row(context_, "0"));
  EXPECT_GT(parts.attached.removals(), removals);
}

TEST_F(CommitterTest, leaves_its_segment_only_when_it_is_the_one) {
  StoreParts parts(options_);
  const std::uint64_t segment = append_to_segment(parts.committer);
  ASSERT_NE(segment, 0);
  parts.committer.leave_segment(segment + 1);
  EXPECT_EQ(segment_of(parts.committer), segment);
  parts.committer.leave_segment(segment);
  EXPECT_EQ(segment_of(parts.committer), 0);
}

TEST_F(CommitterTest, nobody_commits_to_a_directory_that_was_replaced) {
  StoreParts parts(options_);
  const std::string path = parts.attached.directory().database_path();
  std::filesystem::rename(path, path + ".old");
  MutexLock lock(parts.committer.mutex());
  auto directory_lock = parts.committer.lock_directory();
  EXPECT_EQ(directory_lock.status().code(), StatusCode::kIoError);
  EXPECT_THAT(directory_lock.status().message(), HasSubstr("was replaced"));
}

TEST_F(CommitterTest, a_broken_database_is_removed_and_other_failures_are_passed_on) {
  StoreParts parts(options_);
  EXPECT_EQ(parts.committer.as_index_failure(Status::busy("later")).code(), StatusCode::kBusy);
  EXPECT_TRUE(parts.attached.is_attached());
  const Status status = parts.committer.as_index_failure(Status::corruption("bad page"));
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("bad page"));
  EXPECT_FALSE(parts.attached.is_attached());
  EXPECT_FALSE(std::filesystem::exists(parts.attached.directory().database_path()));
}

// Another directory may lie there by now, with a database that is whole.
TEST_F(CommitterTest, a_broken_database_is_not_removed_where_another_took_its_place) {
  StoreParts parts(options_);
  const std::string path = parts.attached.directory().database_path();
  std::filesystem::copy_file(path, path + ".copy");
  std::filesystem::rename(path + ".copy", path);
  parts.committer.detach_broken_database();
  EXPECT_FALSE(parts.attached.is_attached());
  EXPECT_TRUE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace modcache::store
