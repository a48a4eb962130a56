// SPDX-License-Identifier: Apache-2.0
#include "store/attached/attached_directory.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <limits>

#include "base/clock.h"
#include "support/store_parts.h"

namespace modcache::store {
namespace {

using ::testing::HasSubstr;
using testing::StoreParts;

using AttachedDirectoryTest = testing::StorePartsTest;

TEST_F(AttachedDirectoryTest, is_detached_for_good_once_another_database_took_its_place) {
  StoreParts parts(options_);
  EXPECT_TRUE(parts.attached.is_attached());
  EXPECT_TRUE(parts.attached.check_writable().is_ok());
  const std::string path = parts.attached.directory().database_path();
  std::filesystem::rename(path, path + ".old");
  parts.attached.look_again();
  EXPECT_FALSE(parts.attached.check_attached());
  std::filesystem::rename(path + ".old", path);
  parts.attached.look_again();
  EXPECT_FALSE(parts.attached.check_attached());
  EXPECT_FALSE(parts.attached.is_attached());
  EXPECT_THAT(parts.attached.check_writable().message(), HasSubstr("was replaced"));
}

TEST_F(AttachedDirectoryTest, a_new_epoch_detaches_without_a_look_at_the_files) {
  StoreParts parts(options_);
  parts.attached.control().renew_epoch();
  EXPECT_FALSE(parts.attached.is_attached());
}

TEST_F(AttachedDirectoryTest, counts_no_removals_where_there_is_no_control_page) {
  fill(1);
  std::filesystem::remove(directory_ / "control");
  options_.writable = false;
  StoreParts parts(options_);
  EXPECT_TRUE(parts.attached.is_read_only());
  EXPECT_EQ(parts.attached.counted_removals(), 0);
  EXPECT_NE(parts.attached.removals(), 0);
  EXPECT_THAT(parts.attached.check_writable().message(), HasSubstr("can only be read"));
  parts.attached.forget_retired();
}

TEST_F(AttachedDirectoryTest, nothing_expires_without_a_bound) {
  EXPECT_EQ(StoreParts(options_).attached.expired_before_us(),
            std::numeric_limits<std::int64_t>::min());
  options_.max_age_us = 1'000'000;
  const std::int64_t before_us = now_us();
  EXPECT_GE(StoreParts(options_).attached.expired_before_us(), before_us - 1'000'000);
}

}  // namespace
}  // namespace modcache::store
