// SPDX-License-Identifier: Apache-2.0
//
// WriteBehind owes the removal of values that were replaced, and whose replacement could not be
// written.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "remote/write_behind.h"
#include "support/eventually.h"
#include "support/fake_backend.h"

namespace modcache::remote {
namespace {

using testing::eventually;
using testing::ServerCall;
using testing::ValueServer;

constexpr std::chrono::milliseconds kPatienceForDebts{20'000};

class SilentListener final : public WriteBehind::Listener {
 public:
  void on_written(std::size_t) override {}
  void on_dropped(std::size_t, const Status&) override {}
};

class WriteBehindDebtTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLimit = 100;

  // Whether it was taken. The value is not called for before may_encode_.
  bool push(const std::string& name, const std::string& value, bool replaces,
            std::uint64_t size_bytes = 1) {
    std::vector<WriteBehind::Write> writes(1);
    writes[0].name = name;
    writes[0].size_bytes = size_bytes;
    writes[0].replaces = replaces;
    writes[0].encode = [this, value]() -> Result<std::string> {
      is_encoding_ = true;
      EXPECT_TRUE(eventually([this] { return may_encode_.load(); }));
      return value;
    };
    return writes_.push(std::move(writes)).front();
  }
  bool remove(const std::string& name) {
    std::vector<WriteBehind::Write> writes(1);
    writes[0].name = name;
    return writes_.push(std::move(writes)).front();
  }
  void flush() { EXPECT_TRUE(writes_.flush(Client::Clock::now() + kPatienceForDebts).is_ok()); }
  bool is_paid(const std::string& name) {
    return eventually([&] { return !writes_.is_pending(name); });
  }
  std::string stored(const std::string& name) const {
    return server_->value(name).value_or("<none>");
  }

  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  std::atomic<bool> may_encode_{true};
  std::atomic<bool> is_encoding_{false};
  Client client_{ValueServer::connect_to(server_), nullptr};
  SilentListener listener_;
  WriteBehind writes_{client_, {kLimit, 0, kPatienceForDebts}, listener_};
};

TEST_F(WriteBehindDebtTest, the_value_that_a_dropped_one_would_have_replaced_is_removed) {
  server_->set("a", "older");
  EXPECT_FALSE(push("a", "newer", /*replaces=*/true, kLimit + 1));
  EXPECT_TRUE(writes_.is_pending("a"));
  EXPECT_TRUE(push("wakes the writer", "w", /*replaces=*/false));
  EXPECT_TRUE(is_paid("a"));
  EXPECT_EQ(stored("a"), "<none>");
}

TEST_F(WriteBehindDebtTest, a_dropped_value_that_replaces_nothing_costs_nothing) {
  EXPECT_FALSE(push("a", "new", /*replaces=*/false, kLimit + 1));
  EXPECT_FALSE(writes_.has_pending());
  EXPECT_EQ(server_->calls(ServerCall::kRemove), 0);
}

TEST_F(WriteBehindDebtTest, while_the_server_is_down_the_name_stays_pending_and_is_removed_after) {
  server_->set("a", "older");
  server_->set("b", "broken");
  server_->fail(Status::io_error("down"));
  EXPECT_TRUE(push("a", "newer", /*replaces=*/true));
  flush();
  EXPECT_FALSE(client_.is_available());
  EXPECT_TRUE(remove("b")) << "the removal waits for the server";
  flush();
  EXPECT_TRUE(writes_.is_pending("a"));
  EXPECT_TRUE(writes_.is_pending("b"));
  EXPECT_TRUE(writes_.has_pending());
  server_->fail(Status::ok());
  EXPECT_TRUE(is_paid("a") && is_paid("b"));
  EXPECT_EQ(stored("a"), "<none>");
  EXPECT_EQ(stored("b"), "<none>");
}

TEST_F(WriteBehindDebtTest, a_full_server_loses_what_was_replaced) {
  server_->set("a", "older");
  server_->refuse_writes(Status::no_space("full"));
  EXPECT_TRUE(push("a", "newer", /*replaces=*/true));
  EXPECT_TRUE(is_paid("a"));
  EXPECT_EQ(stored("a"), "<none>");
}

TEST_F(WriteBehindDebtTest, what_one_part_of_the_server_did_not_store_is_owed_and_the_rest_is_not) {
  server_->set("a", "older");
  server_->leave_out({"a"});
  may_encode_ = false;
  EXPECT_TRUE(push("a", "newer", /*replaces=*/true));
  EXPECT_TRUE(push("b", "newer", /*replaces=*/true));
  may_encode_ = true;
  flush();
  EXPECT_EQ(stored("b"), "newer");
  EXPECT_TRUE(is_paid("a"));
  EXPECT_EQ(stored("a"), "<none>");
  EXPECT_EQ(stored("b"), "newer");
}

TEST_F(WriteBehindDebtTest, a_value_that_is_stored_later_settles_what_was_owed) {
  server_->set("a", "older");
  may_encode_ = false;
  EXPECT_TRUE(push("blocker", "b", false));
  EXPECT_TRUE(eventually([this] { return is_encoding_.load(); }));
  EXPECT_FALSE(push("a", "newer", /*replaces=*/true, kLimit)) << "no room";
  EXPECT_TRUE(push("a", "newest", /*replaces=*/true));
  EXPECT_TRUE(writes_.is_pending("a"));
  may_encode_ = true;
  flush();
  EXPECT_TRUE(is_paid("a"));
  EXPECT_EQ(stored("a"), "newest");
}

// The older value is stored after its replacement was dropped, and must not be found.
TEST_F(WriteBehindDebtTest, an_older_value_that_is_stored_later_does_not_settle_it) {
  for (const bool replaces : {false, true}) {
    may_encode_ = false;
    is_encoding_ = false;
    EXPECT_TRUE(push("a", "older", false));
    EXPECT_TRUE(eventually([this] { return is_encoding_.load(); }));
    EXPECT_FALSE(push("a", "newer", replaces, kLimit));
    may_encode_ = true;
    EXPECT_TRUE(is_paid("a"));
    EXPECT_EQ(stored("a"), "<none>") << replaces;
  }
}

// Both go into one batch, of which only the older could have been stored.
TEST_F(WriteBehindDebtTest, of_two_values_in_a_batch_the_older_one_never_stays) {
  server_->set("a", "oldest");
  may_encode_ = false;
  EXPECT_TRUE(push("blocker", "b", false));
  EXPECT_TRUE(eventually([this] { return is_encoding_.load(); }));
  EXPECT_TRUE(push("a", "older", /*replaces=*/true));
  EXPECT_TRUE(push("a", "newer", /*replaces=*/false));
  server_->leave_out({"a"});
  may_encode_ = true;
  flush();
  EXPECT_TRUE(is_paid("a"));
  EXPECT_EQ(stored("a"), "<none>") << "the newer one has the duty of the older one";
}

TEST_F(WriteBehindDebtTest, many_debts_are_paid_in_few_removals) {
  constexpr int kDebts = 1500;
  may_encode_ = false;
  EXPECT_TRUE(push("blocker", "b", false));
  EXPECT_TRUE(eventually([this] { return is_encoding_.load(); }));
  for (int i = 0; i < kDebts; ++i) {
    server_->set("n" + std::to_string(i), "older");
    EXPECT_FALSE(push("n" + std::to_string(i), "newer", /*replaces=*/true, kLimit));
  }
  EXPECT_TRUE(writes_.has_pending());
  may_encode_ = true;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(push("wakes it " + std::to_string(i), "w", false));
    flush();
  }
  EXPECT_TRUE(eventually([this] { return !writes_.has_pending(); }));
  EXPECT_EQ(server_->names().size(), 5u);
  EXPECT_LE(server_->calls(ServerCall::kRemove), 10);
}

}  // namespace
}  // namespace modcache::remote
