// SPDX-License-Identifier: Apache-2.0
//
// Entries that need a confirmation: on disk once they have it, and nowhere once it is refuted.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::get;
using testing::open_store;
using testing::put;

struct Weights final : Evidence {
  bool holds() const override { return are_same; }
  bool is_due() const override { return is_time; }

  std::atomic<bool> are_same{true};
  std::atomic<bool> is_time{false};
};

class ProvisionalTest : public testing::StoreTest {
 protected:
  ProvisionalTest() {
    options_.directory = directory_ / "cache";
    store_ = open_store(options_);
  }

  void store(const std::string& key, const std::string& payload) {
    store(key, payload, confirmation_);
  }
  void store(const std::string& key, const std::string& payload, ConfirmationPtr confirmation) {
    Put put{{context_, key}, "header", share_bytes(std::string(payload)), 7};
    put.confirmation = std::move(confirmation);
    EXPECT_TRUE(store_->put(std::move(put)).is_ok());
  }
  std::string found_by_another_process(const std::string& key) {
    return get(*open_store(options_.directory), context_, key);
  }
  // Returns the value as soon as it is there, within some seconds.
  std::string found_in_time(const std::string& key) {
    std::string found = found_by_another_process(key);
    for (int i = 0; i < 500 && found == "<missing>"; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      found = found_by_another_process(key);
    }
    return found;
  }

  StoreOptions options_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<Weights> weights_ = std::make_shared<Weights>();
  const ConfirmationPtr confirmation_ = std::make_shared<Confirmation>(weights_);
};

TEST_F(ProvisionalTest, is_found_here_and_nowhere_else) {
  store("key", "value");
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(get(*store_, context_, "key"), "value");
  EXPECT_EQ(found_by_another_process("key"), "<missing>");
}

TEST_F(ProvisionalTest, is_written_once_a_check_is_due) {
  store("key", "value");
  weights_->is_time = true;
  EXPECT_EQ(found_in_time("key"), "value");
}

TEST_F(ProvisionalTest, is_written_by_a_flush_and_by_the_end) {
  store("flushed", "value");
  EXPECT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(found_by_another_process("flushed"), "value");
  store("closed", "value", std::make_shared<Confirmation>(weights_));
  store_ = nullptr;
  EXPECT_EQ(found_by_another_process("closed"), "value");
}

TEST_F(ProvisionalTest, lets_others_be_written_before_it) {
  store("provisional", "value");
  EXPECT_TRUE(put(*store_, context_, "other", "value").is_ok());
  EXPECT_EQ(found_in_time("other"), "value");
  EXPECT_EQ(found_by_another_process("provisional"), "<missing>");
}

TEST_F(ProvisionalTest, is_gone_when_the_check_fails) {
  store("key", "value");
  weights_->are_same = false;
  EXPECT_TRUE(store_->flush().is_ok());
  EXPECT_TRUE(confirmation_->is_refuted());
  EXPECT_EQ(get(*store_, context_, "key"), "<missing>");
  EXPECT_EQ(found_by_another_process("key"), "<missing>");
}

TEST_F(ProvisionalTest, is_not_found_from_the_moment_it_is_refuted) {
  store("key", "value");
  confirmation_->refute();
  EXPECT_EQ(get(*store_, context_, "key"), "<missing>");
  const auto found = store_->find_all(context_, {"key"});
  EXPECT_FALSE(found.has(0));
}

TEST_F(ProvisionalTest, does_not_stand_in_for_what_was_there_before_it) {
  EXPECT_TRUE(put(*store_, context_, "key", "older").is_ok());
  EXPECT_TRUE(store_->flush().is_ok());
  store("key", "newer");
  confirmation_->refute();
  EXPECT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(get(*store_, context_, "key"), "older");
}

TEST_F(ProvisionalTest, can_be_cleared_while_it_waits) {
  store("key", "value");
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_TRUE(store_->clear({}).is_ok());
  weights_->is_time = true;
  EXPECT_TRUE(store_->flush().is_ok());
  EXPECT_EQ(get(*store_, context_, "key"), "<missing>");
  EXPECT_EQ(found_by_another_process("key"), "<missing>");
}

}  // namespace
}  // namespace modcache::store
