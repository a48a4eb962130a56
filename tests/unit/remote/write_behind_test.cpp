// SPDX-License-Identifier: Apache-2.0
#include "remote/write_behind.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "support/eventually.h"
#include "support/fake_backend.h"

namespace modcache::remote {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::ServerCall;
using testing::ValueServer;
using Write = WriteBehind::Write;

// Reached only where a test fails.
constexpr milliseconds kLongEnough{20'000};

class CountingListener final : public WriteBehind::Listener {
 public:
  void on_written(std::size_t writes) override { written += static_cast<int>(writes); }
  void on_dropped(std::size_t writes, const Status& failure) override {
    dropped += static_cast<int>(writes);
    last_failure = failure.code();
  }

  std::atomic<int> written{0};
  std::atomic<int> dropped{0};
  std::atomic<StatusCode> last_failure{StatusCode::kOk};
};

Write write_of(std::string name, std::string value, bool replaces = false) {
  Write write;
  write.name = std::move(name);
  write.size_bytes = value.size();
  write.replaces = replaces;
  write.encode = [value = std::move(value)]() -> Result<std::string> { return value; };
  return write;
}

Write removal_of(std::string name) {
  Write write;
  write.name = std::move(name);
  return write;
}

class WriteBehindTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kLimit = 1000;

  ~WriteBehindTest() override { server_->release(); }

  std::unique_ptr<WriteBehind> make_writes(milliseconds timeout = kLongEnough) {
    return std::make_unique<WriteBehind>(client_, WriteBehind::Options{kLimit, kTtlMs, timeout},
                                         listener_);
  }
  bool push(Write write) {
    std::vector<Write> one;
    one.push_back(std::move(write));
    return writes_->push(std::move(one)).front();
  }
  // In one batch: together they are below what is gathered at once.
  template <typename... Writes>
  void push_together(Writes... each) {
    std::vector<Write> all;
    (all.push_back(std::move(each)), ...);
    for (const bool is_taken : writes_->push(std::move(all))) EXPECT_TRUE(is_taken);
  }
  Status flush(milliseconds timeout = kLongEnough) {
    return writes_->flush(Client::Clock::now() + timeout);
  }
  void flush_well() { EXPECT_TRUE(flush().is_ok()); }
  // A write that the writer's thread does while others are pushed, and that says when to go on.
  void block_writer() {
    Write write = write_of("blocker", "b");
    write.encode = [this]() -> Result<std::string> {
      is_blocked_ = true;
      EXPECT_TRUE(eventually([this] { return !may_block_; }));
      return std::string("b");
    };
    EXPECT_TRUE(push(std::move(write)));
    EXPECT_TRUE(eventually([this] { return is_blocked_.load(); }));
  }
  void unblock_writer() { may_block_ = false; }
  std::string stored(const std::string& name) const {
    return server_->value(name).value_or("<none>");
  }

  static constexpr std::int64_t kTtlMs = 77;
  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  std::atomic<bool> is_blocked_{false};
  std::atomic<bool> may_block_{true};
  Client client_{ValueServer::connect_to(server_), nullptr};
  CountingListener listener_;
  std::unique_ptr<WriteBehind> writes_ = make_writes();
};

TEST_F(WriteBehindTest, what_is_pushed_is_written_with_its_time_to_live) {
  push_together(write_of("a", "1"), write_of("b", ""));
  flush_well();
  EXPECT_EQ(stored("a"), "1");
  EXPECT_EQ(stored("b"), "");
  EXPECT_EQ(server_->ttl_ms("a"), kTtlMs);
  EXPECT_EQ(listener_.written, 2);
  EXPECT_EQ(listener_.dropped, 0);
  EXPECT_FALSE(writes_->is_pending("a"));
  EXPECT_FALSE(writes_->has_pending());
}

TEST_F(WriteBehindTest, many_writes_go_in_few_batches_and_all_of_them) {
  block_writer();
  constexpr int kWrites = 900;
  for (int i = 0; i < kWrites; ++i) ASSERT_TRUE(push(write_of("n" + std::to_string(i), "v")));
  unblock_writer();
  flush_well();
  EXPECT_EQ(server_->names().size(), kWrites + 1u);
  EXPECT_EQ(listener_.written, kWrites + 1);
  EXPECT_EQ(server_->calls(ServerCall::kPut), 3) << "the blocker's, 512 and the rest";
}

TEST_F(WriteBehindTest, of_many_writes_of_a_name_the_last_one_stays) {
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(push(write_of("a", std::to_string(i))));
    EXPECT_TRUE(i % 7 != 0 || push(removal_of("a")));
  }
  flush_well();
  EXPECT_EQ(stored("a"), "299");
}

TEST_F(WriteBehindTest, a_removal_takes_what_was_pushed_before_it_and_nothing_that_follows) {
  server_->set("old", "x");
  push_together(write_of("a", "1"), removal_of("a"), removal_of("b"), write_of("b", "2"),
                removal_of("old"));
  flush_well();
  EXPECT_EQ(stored("a"), "<none>");
  EXPECT_EQ(stored("b"), "2");
  EXPECT_EQ(stored("old"), "<none>");
}

TEST_F(WriteBehindTest, what_has_no_room_is_dropped_and_counted_and_the_rest_is_taken) {
  block_writer();
  std::vector<Write> all;
  all.push_back(write_of("a", std::string(600, 'a')));
  all.push_back(write_of("b", std::string(600, 'b')));
  all.push_back(write_of("c", std::string(300, 'c')));
  all.push_back(removal_of("d"));
  EXPECT_EQ(writes_->push(std::move(all)), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(listener_.dropped, 1);
  EXPECT_EQ(listener_.last_failure, StatusCode::kOk);
  unblock_writer();
  flush_well();
  EXPECT_EQ(stored("b"), "<none>");
  EXPECT_EQ(stored("c").size(), 300u);
  EXPECT_TRUE(push(write_of("b", std::string(600, 'b')))) << "there is room again";
  EXPECT_FALSE(push(write_of("huge", std::string(kLimit + 1, 'h'))));
}

TEST_F(WriteBehindTest, a_name_is_pending_until_it_is_written) {
  block_writer();
  push_together(write_of("a", "1"));
  EXPECT_TRUE(writes_->is_pending("a"));
  EXPECT_TRUE(writes_->is_pending("blocker"));
  EXPECT_FALSE(writes_->is_pending("b"));
  EXPECT_TRUE(writes_->has_pending());
  EXPECT_EQ(flush(milliseconds(1)).code(), StatusCode::kBusy);
  unblock_writer();
  flush_well();
  EXPECT_FALSE(writes_->is_pending("a"));
}

TEST_F(WriteBehindTest, a_flush_without_writes_returns_at_once) {
  EXPECT_TRUE(writes_->flush(Client::Clock::now()).is_ok());
  push_together(write_of("a", "1"));
  flush_well();
  EXPECT_TRUE(writes_->flush(Client::Clock::now()).is_ok());
}

TEST_F(WriteBehindTest, what_meets_a_server_that_is_left_alone_is_dropped_at_once) {
  server_->fail(Status::io_error("down"));
  push_together(write_of("a", "1"));
  flush_well();
  EXPECT_EQ(listener_.last_failure, StatusCode::kIoError);
  EXPECT_FALSE(push(write_of("b", "1")));
  EXPECT_FALSE(push(write_of("c", "1")));
  EXPECT_EQ(listener_.dropped, 3);
  EXPECT_EQ(listener_.last_failure, StatusCode::kOk);
  EXPECT_FALSE(writes_->has_pending()) << "nothing of them was replaced";
}

TEST_F(WriteBehindTest, a_full_server_or_one_closed_to_writers_is_written_to_no_more_for_a_while) {
  for (const StatusCode code : {StatusCode::kNoSpace, StatusCode::kForeign}) {
    writes_ = make_writes();
    server_->refuse_writes(Status(code, "no"));
    push_together(write_of("a", "1"));
    flush_well();
    EXPECT_EQ(listener_.last_failure, code);
    EXPECT_TRUE(client_.is_available()) << "it can be read";
    server_->refuse_writes(Status::ok());
    const int puts = server_->calls(ServerCall::kPut);
    EXPECT_FALSE(push(write_of("a", "1")));
    EXPECT_TRUE(push(removal_of("a"))) << "a removal makes room";
    flush_well();
    EXPECT_EQ(server_->calls(ServerCall::kPut), puts);
  }
}

TEST_F(WriteBehindTest, DropsAndCountsWhatCannotBeEncoded) {
  Write thrown = write_of("thrown", "1");
  thrown.encode = []() -> Result<std::string> { throw std::runtime_error("oh"); };
  Write failed = write_of("failed", "1");
  failed.encode = []() -> Result<std::string> { return Status::io_error("no generation"); };
  push_together(std::move(thrown), write_of("good", "1"), std::move(failed));
  flush_well();
  EXPECT_EQ(server_->names(), std::vector<std::string>{"good"});
  EXPECT_EQ(listener_.written, 1);
  EXPECT_EQ(listener_.dropped, 2);
}

TEST_F(WriteBehindTest, RemovesTheReplacedValueIfTheNewOneCannotBeEncoded) {
  server_->set("a", "older");
  Write failed = write_of("a", "1", /*replaces=*/true);
  failed.encode = []() -> Result<std::string> { return Status::io_error("no generation"); };
  push_together(std::move(failed));
  flush_well();
  EXPECT_EQ(stored("a"), "<none>");
  EXPECT_FALSE(writes_->is_pending("a"));
}

// A write that was given up could reach the server after a newer one.
TEST_F(WriteBehindTest, nothing_is_written_while_an_older_write_may_still_arrive) {
  writes_ = make_writes(milliseconds(50));
  server_->hang();
  push_together(write_of("a", "old"));
  EXPECT_TRUE(eventually([this] { return !client_.is_available(); })) << "it is late";
  EXPECT_FALSE(push(write_of("a", "new", /*replaces=*/true))) << "the server is left alone";
  EXPECT_TRUE(writes_->is_pending("a"));
  EXPECT_EQ(flush(milliseconds(100)).code(), StatusCode::kBusy);
  server_->release();
  EXPECT_TRUE(eventually([this] { return !writes_->is_pending("a"); }));
  EXPECT_EQ(stored("a"), "<none>") << "the old value was taken away after it had arrived";
}

TEST_F(WriteBehindTest, stopping_does_not_wait_for_a_server_that_hangs) {
  server_->hang();
  block_writer();
  unblock_writer();
  std::atomic<bool> has_stopped{false};
  std::thread stopper([&] {
    writes_->stop();
    has_stopped = true;
  });
  EXPECT_TRUE(eventually([&] { return has_stopped.load(); }));
  server_->release();
  stopper.join();
}

TEST_F(WriteBehindTest, stopping_drops_what_waits_and_ends_the_waiting_for_it) {
  block_writer();
  push_together(write_of("a", "1"), removal_of("b"));
  std::thread flusher([this] { EXPECT_EQ(flush().code(), StatusCode::kBusy); });
  std::thread stopper([this] { writes_->stop(); });
  flusher.join();
  unblock_writer();
  stopper.join();
  EXPECT_EQ(stored("a"), "<none>");
  EXPECT_FALSE(push(write_of("c", "1")));
  EXPECT_FALSE(push(removal_of("c")));
  EXPECT_EQ(listener_.written + listener_.dropped, 1) << "the blocker, which was being written";
  writes_->stop();
}

TEST_F(WriteBehindTest, threads_push_flush_and_ask_at_once) {
  std::vector<std::thread> threads;
  std::atomic<int> taken{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &taken] {
      for (int i = 0; i < 100; ++i) {
        const std::string name = std::to_string(t) + "/" + std::to_string(i % 10);
        taken += push(write_of(name, "v")) ? 1 : 0;
        writes_->is_pending(name);
        if (i % 30 == 0) flush_well();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  flush_well();
  EXPECT_EQ(listener_.dropped, 800 - taken);
  EXPECT_LE(listener_.written, taken) << "some were replaced before they were written";
  EXPECT_GE(listener_.written, 80);
}

#if MODCACHE_CAN_FORK_WITH_THREADS
TEST_F(WriteBehindTest, a_forked_child_starts_with_an_empty_queue_and_writes_by_itself) {
  push_together(write_of("before", "1"));
  flush_well();
  block_writer();
  push_together(write_of("waits", "1"));
  testing::ChildProcess child([this] {
    ::alarm(20);
    if (writes_->has_pending() && writes_->is_pending("waits")) return 1;
    if (!push(write_of("child", "1")) || !flush().is_ok()) return 2;
    if (!server_->has("child") || server_->has("waits")) return 3;
    writes_ = nullptr;
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  unblock_writer();
  flush_well();
  EXPECT_EQ(stored("waits"), "1");
}
#endif

}  // namespace
}  // namespace modcache::remote
