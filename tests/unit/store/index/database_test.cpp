// SPDX-License-Identifier: Apache-2.0
#include "store/index/database.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

using Mode = Database::Mode;

class DatabaseTest : public ::testing::Test {
 protected:
  DatabaseTest() {
    EXPECT_TRUE(open(Mode::kCreate)->execute("CREATE TABLE t(n, text)").is_ok());
    EXPECT_TRUE(open(Mode::kWrite)->execute("PRAGMA journal_mode=WAL").is_ok());
  }
  std::unique_ptr<Database> open(Mode mode) const {
    auto database = Database::open(fs::posix_file_system(), path_, mode, /*patience_ms=*/50);
    EXPECT_TRUE(database.is_ok()) << database.status().message();
    return database.is_ok() ? std::move(database).value() : nullptr;
  }
  static std::int64_t count(Database& database) {
    return database.query_number("SELECT count(*) FROM t").value();
  }

  const testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "test.sqlite";
};

TEST_F(DatabaseTest, binds_any_bytes_and_gives_them_back) {
  const auto database = open(Mode::kWrite);
  Statement insert = database->prepare("INSERT INTO t VALUES(?, ?)").value();
  const std::string bytes("a\0b\xff", 4);
  for (const std::int64_t number : {-1, 7}) {
    ASSERT_TRUE(Query(insert).bind(number).bind_blob(bytes).run().is_ok());
    EXPECT_EQ(database->changes(), 1);
  }
  Statement select = database->prepare("SELECT n, text FROM t ORDER BY n").value();
  Query query(select);
  ASSERT_TRUE(query.step().value());
  EXPECT_EQ(query.number(0), -1);
  EXPECT_EQ(query.bytes(1), bytes);
  EXPECT_TRUE(query.step().value());
  EXPECT_FALSE(query.step().value()) << "there are two rows";
}

TEST_F(DatabaseTest, counts_the_queries_of_this_thread) {
  const auto database = open(Mode::kWrite);
  const std::uint64_t before = queries_run();
  Statement select = database->prepare("SELECT 1").value();
  (void)Query(select).step();
  EXPECT_EQ(queries_run(), before + 1);
}

TEST_F(DatabaseTest, what_is_no_statement_is_a_failure_and_what_has_no_row_is_not_found) {
  const auto database = open(Mode::kWrite);
  EXPECT_FALSE(database->execute("no SQL").is_ok());
  EXPECT_FALSE(database->prepare("SELECT none FROM t").is_ok());
  EXPECT_TRUE(database->query_number("SELECT n FROM t").is_not_found());
}

TEST_F(DatabaseTest, a_transaction_that_is_not_committed_is_undone) {
  const auto database = open(Mode::kWrite);
  {
    auto transaction = Transaction::begin(*database);
    ASSERT_TRUE(transaction.is_ok());
    ASSERT_TRUE(database->execute("INSERT INTO t VALUES(1, '')").is_ok());
    EXPECT_EQ(count(*open(Mode::kRead)), 0) << "others do not see it yet";
  }
  EXPECT_EQ(count(*database), 0);
  auto transaction = Transaction::begin(*database);
  ASSERT_TRUE(database->execute("INSERT INTO t VALUES(1, '')").is_ok());
  ASSERT_TRUE(transaction.value().commit().is_ok());
  EXPECT_EQ(count(*open(Mode::kRead)), 1);
}

TEST_F(DatabaseTest, a_second_writer_is_busy_after_its_patience) {
  const auto one = open(Mode::kWrite);
  const auto two = open(Mode::kWrite);
  const auto first = Transaction::begin(*one);
  EXPECT_EQ(Transaction::begin(*two).status().code(), StatusCode::kBusy);
}

TEST_F(DatabaseTest, a_read_transaction_sees_one_state_and_keeps_the_log) {
  const auto writer = open(Mode::kWrite);
  ASSERT_TRUE(writer->execute("UPDATE t SET n = 0").is_ok()) << "makes the log";
  const auto reader = open(Mode::kRead);
  {
    const auto reading = Transaction::begin_reading(*reader);
    ASSERT_TRUE(reading.is_ok());
    EXPECT_EQ(count(*reader), 0);
    ASSERT_TRUE(writer->execute("INSERT INTO t VALUES(1, '')").is_ok());
    EXPECT_EQ(count(*reader), 0);
    EXPECT_FALSE(writer->checkpoint().value()) << "somebody reads from it";
  }
  EXPECT_EQ(count(*reader), 1);
  EXPECT_TRUE(writer->checkpoint().value());
}

TEST_F(DatabaseTest, that_is_opened_to_read_is_not_written) {
  EXPECT_FALSE(open(Mode::kRead)->execute("INSERT INTO t VALUES(1, '')").is_ok());
  EXPECT_FALSE(open(Mode::kImmutable)->execute("INSERT INTO t VALUES(1, '')").is_ok());
}

}  // namespace
}  // namespace modcache::store
