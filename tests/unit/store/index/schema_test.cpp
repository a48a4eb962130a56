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
  StatusCode checked() const { return check_schema(*database_).code(); }

  const std::unique_ptr<Database> database_ =
      Database::open(fs::posix_file_system(), ":memory:", Database::Mode::kMemory, 0).value();
};

TEST_F(SchemaTest, that_was_created_is_of_this_version) {
  ASSERT_TRUE(create_schema(*database_).is_ok());
  EXPECT_EQ(checked(), StatusCode::kOk);
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

TEST_F(SchemaTest, of_another_version_is_told_from_a_broken_one) {
  ASSERT_TRUE(create_schema(*database_).is_ok());
  for (const std::int64_t version : {kUserVersion - 1, kUserVersion + 1}) {
    execute("PRAGMA user_version=" + std::to_string(version));
    EXPECT_EQ(checked(), StatusCode::kUnsupportedVersion) << version;
  }
}

}  // namespace
}  // namespace modcache::store
