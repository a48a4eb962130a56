// SPDX-License-Identifier: Apache-2.0
//
// A value that was replaced is not found again, whatever happens to the one that replaced it.
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>

#include "support/captured_log.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::Fault;
using testing::get;
using testing::open_store;
using testing::put;

class ReplacedTest : public testing::StoreTest {
 protected:
  ReplacedTest() {
    options_.directory = directory_ / "cache";
    options_.patience_ms = 20;
    store_ = open_store(options_, files_);
    EXPECT_TRUE(put(*store_, context_, "key", "older").is_ok());
    EXPECT_TRUE(store_->flush().is_ok());
  }

  Status replace(const std::string& payload) {
    auto sequence =
        store_->put({{context_, "key"}, "header", share_bytes(std::string(payload)), 7, true});
    EXPECT_TRUE(sequence.is_ok());
    return store_->flush();
  }
  std::string found_by_another_process() {
    return get(*open_store(options_.directory), context_, "key");
  }

  const testing::CapturedLog quiet_;
  testing::FaultFileSystem files_{fs::posix_file_system()};
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

class ReplacedFaultTest : public ReplacedTest,
                          public ::testing::WithParamInterface<std::tuple<Fault, bool>> {};

TEST_P(ReplacedFaultTest, is_gone_when_the_newer_one_cannot_be_written) {
  const auto [fault, forever] = GetParam();
  files_.fail_at(1, fault, forever);
  EXPECT_FALSE(replace("newer").is_ok());
  EXPECT_EQ(get(*store_, context_, "key"), "<missing>");
  EXPECT_EQ(found_by_another_process(), "<missing>");
  store_ = nullptr;
  files_.heal();
  EXPECT_EQ(found_by_another_process(), "<missing>");
  // The segments have a record of it, unless nothing could be written.
  if (forever) return;
  std::filesystem::remove(options_.directory + "/index.sqlite");
  EXPECT_EQ(found_by_another_process(), "<missing>");
}

INSTANTIATE_TEST_SUITE_P(Faults, ReplacedFaultTest,
                         ::testing::Combine(::testing::Values(Fault::kNoSpace, Fault::kIoError,
                                                              Fault::kShortWrite),
                                            ::testing::Bool()),
                         [](const auto& tested) {
                           return std::string(testing::name_of(std::get<0>(tested.param))) +
                                  (std::get<1>(tested.param) ? "_from_then_on" : "_once");
                         });

TEST_F(ReplacedTest, is_gone_once_the_database_can_be_written_again) {
  files_.faults().fail_at(1, Fault::kNoSpace, true, testing::calls_that_can(Fault::kNoSpace));
  EXPECT_FALSE(replace("newer").is_ok());
  files_.heal();
  ASSERT_TRUE(put(*store_, context_, "another", "value").is_ok());
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(found_by_another_process(), "<missing>");
}

TEST_F(ReplacedTest, is_not_found_meanwhile_where_its_row_cannot_be_removed) {
  const Sequence older = store_->find({context_, "key"}).value()->sequence();
  files_.faults().fail_at(1, Fault::kNoSpace, true, testing::calls_that_can(Fault::kNoSpace));
  EXPECT_FALSE(replace("newer").is_ok());
  EXPECT_EQ(found_by_another_process(), "older") << "nothing could be told";
  EXPECT_TRUE(store_->find({context_, "key"}).status().is_not_found());
  EXPECT_EQ(store_->find_all(context_, {"key"}).sequence(0), 0u);
  EXPECT_FALSE(store_->is_current({context_, "key"}, older));
  EXPECT_FALSE(store_->are_current(context_, {"key"}, {older}).front());
}

TEST_F(ReplacedTest, is_not_found_meanwhile_where_the_lock_is_not_to_be_had) {
  auto lock = fs::posix_file_system().open(options_.directory + "/lock", fs::OpenMode::kReadWrite);
  ASSERT_TRUE(lock.value()->try_lock().value());
  EXPECT_EQ(replace("newer").code(), StatusCode::kBusy);
  EXPECT_EQ(get(*store_, context_, "key"), "<missing>");
}

TEST_F(ReplacedTest, is_gone_once_the_lock_is_to_be_had_again) {
  auto lock = fs::posix_file_system().open(options_.directory + "/lock", fs::OpenMode::kReadWrite);
  ASSERT_TRUE(lock.value()->try_lock().value());
  EXPECT_EQ(replace("newer").code(), StatusCode::kBusy);
  lock.value()->unlock();
  ASSERT_TRUE(put(*store_, context_, "another", "value").is_ok());
  ASSERT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(found_by_another_process(), "<missing>");
}

TEST_F(ReplacedTest, spares_what_was_put_after_the_one_that_failed) {
  files_.faults().fail_at(1, Fault::kNoSpace, true, testing::calls_that_can(Fault::kNoSpace));
  EXPECT_FALSE(replace("newer").is_ok());
  files_.heal();
  ASSERT_TRUE(replace("newest").is_ok());
  EXPECT_EQ(found_by_another_process(), "newest");
}

}  // namespace
}  // namespace modcache::store
