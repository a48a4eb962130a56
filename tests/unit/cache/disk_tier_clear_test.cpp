// SPDX-License-Identifier: Apache-2.0
//
// Clearing a directory that is left alone since it failed.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/one_or_many.h"
#include "cache/disk_tier.h"
#include "fs/posix_file_system.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

class DiskTierClearTest : public ::testing::Test {
 protected:
  DiskTier tier_in(const std::string& directory) {
    Settings settings;
    settings.dir = directory;
    return DiskTier(settings, format_, stats_);
  }
  std::string get(DiskTier& tier) const {
    auto rows = tier.find_rows(keys_, Access::kWrite);
    if (!rows.has_value() || !rows->has(0)) return "<missing>";
    return testing::text_of(
        tier.read(keys_.id(0), *rows, 0, Access::kWrite, Reading::kToKeep).entry);
  }
  std::int64_t errors() const { return stats_.get(Counter::kErrors); }

  const testing::CapturedLog log_;
  testing::TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
  const testing::TextFormat format_;
  Stats stats_;
  const Keys keys_{make_context({}), "key"};
};

TEST_F(DiskTierClearTest, is_tried_although_the_directory_is_left_alone) {
  DiskTier writer = tier_in(dir_);
  OneOrMany<EntryPtr> entries(1);
  entries[0] = testing::text_entry("text");
  OneOrMany<Kept> kept(1);
  writer.store(keys_, entries, {}, kept);
  ASSERT_TRUE(kept[0].is_kept);
  writer.close();
  auto lock = fs::posix_file_system().open(dir_ + "/lock", fs::OpenMode::kReadWrite);
  ASSERT_TRUE(lock.value()->try_lock().value());
  DiskTier tier = tier_in(dir_);
  EXPECT_EQ(get(tier), "<missing>");
  EXPECT_EQ(errors(), 1) << "it is left alone from now on";
  lock.value()->unlock();
  EXPECT_EQ(get(tier), "<missing>");
  EXPECT_EQ(tier.clear({}), 1);
  EXPECT_EQ(get(writer), "<missing>");
  EXPECT_EQ(errors(), 1);
}

TEST_F(DiskTierClearTest, is_an_error_that_says_why_where_it_cannot_be_done) {
  testing::write_file(directory_ / "file", "not a directory");
  DiskTier tier = tier_in(directory_ / "file/cache");
  EXPECT_EQ(get(tier), "<missing>");
  EXPECT_EQ(tier.clear({}), 0);
  EXPECT_EQ(errors(), 3) << "opened, opened once more, not cleared";
  EXPECT_EQ(tier.clear({}), 0);
  EXPECT_EQ(errors(), 4) << "not opened again, not cleared";
  const auto lines = log_.about("was not cleared");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("file/cache"), std::string::npos) << lines[0];
}

TEST_F(DiskTierClearTest, makes_no_directory) {
  DiskTier tier = tier_in(dir_);
  EXPECT_EQ(tier.clear({}), 0);
  EXPECT_FALSE(std::filesystem::exists(dir_));
  EXPECT_EQ(errors(), 0);
}

}  // namespace
}  // namespace modcache::cache
