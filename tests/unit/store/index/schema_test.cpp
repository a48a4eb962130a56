// SPDX-License-Identifier: Apache-2.0
#include "store/index/schema.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "fs/posix_file_system.h"
#include "store/index/index.h"

namespace modcache::store {
namespace {

class SchemaTest : public ::testing::Test {
 protected:
  void execute(const std::string& sql) const { EXPECT_TRUE(database_->execute(sql).is_ok()); }
  StatusCode checked() const { return check_schema(*database_).status().code(); }

  const std::unique_ptr<Database> database_ =
      Database::open(fs::posix_file_system(), ":memory:", Database::Mode::kMemory, 0).value();
};

TEST_F(SchemaTest, that_was_created_is_of_this_version) {
  ASSERT_TRUE(create_schema(*database_).is_ok());
  EXPECT_EQ(check_schema(*database_).value(), kUserVersion);
  EXPECT_EQ(database_->query_number("SELECT value FROM meta WHERE name='last_sequence'").value(),
            0);
}

TEST_F(SchemaTest, of_somebody_else_or_not_whole_is_corruption) {
  EXPECT_EQ(checked(), StatusCode::kCorruption) << "an empty database";
  ASSERT_TRUE(create_schema(*database_).is_ok());
  execute("PRAGMA user_version=0");
  EXPECT_EQ(checked(), StatusCode::kCorruption);
  execute("PRAGMA user_version=" + std::to_string(kUserVersion));
  EXPECT_EQ(checked(), StatusCode::kOk);
  execute("DROP TABLE clears");
  EXPECT_EQ(checked(), StatusCode::kCorruption);
}

TEST_F(SchemaTest, of_a_newer_version_is_told_from_a_broken_one) {
  ASSERT_TRUE(create_schema(*database_).is_ok());
  execute("PRAGMA user_version=" + std::to_string(kUserVersion + 1));
  EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion);
}

TEST_F(SchemaTest, of_the_first_version_becomes_that_of_today_and_keeps_its_rows) {
  ASSERT_TRUE(create_schema(*database_).is_ok());
  execute("ALTER TABLE entries DROP COLUMN replaces");
  execute("PRAGMA user_version=1");
  execute("INSERT INTO segments VALUES(1, 'name', 1, 0)");
  execute("INSERT INTO contexts VALUES(1, x'00', x'00', x'00')");
  execute("INSERT INTO entries VALUES(1, x'00', 1, 64, 3, 5, 9, 7, 8)");
  ASSERT_TRUE(migrate_schema(*database_, 1).is_ok());
  EXPECT_EQ(check_schema(*database_).value(), kUserVersion);
  EXPECT_EQ(database_->query_number("SELECT sequence + replaces FROM entries").value(), 9);
}

}  // namespace
}  // namespace modcache::store
