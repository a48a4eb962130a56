// SPDX-License-Identifier: Apache-2.0
#include "remote/client.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
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

// Longer than any call of these tests may take; reached only where one fails.
constexpr milliseconds kPatience{20'000};
// Far less than kPatience, and more than a busy machine adds to a call that returns at once.
constexpr milliseconds kSoon{2'000};

Status look_up(Backend& backend) {
  std::vector<SharedBytes> values;
  return backend.get_all({"name"}, values);
}

class ClientTest : public ::testing::Test {
 protected:
  // A thread that still hangs would outlive the test.
  ~ClientTest() override { server_->release(); }

  std::unique_ptr<Client> make_client() { return make_client(ValueServer::connect_to(server_)); }
  std::unique_ptr<Client> make_client(Client::MakeBackend make_backend) {
    return std::make_unique<Client>(std::move(make_backend), [this](const Status& change) {
      const std::lock_guard<std::mutex> lock(mutex_);
      changes_.push_back(change.code());
    });
  }
  std::vector<StatusCode> changes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return changes_;
  }
  Status run(Client::Work work, milliseconds timeout = kPatience) {
    return client_->run(std::move(work), timeout);
  }
  // A thread of the client has to be at work when the caller's time is over.
  Status run_until_open(const Client::Work& work) {
    Status status;
    while (client_->is_available()) status = run(work, milliseconds(20));
    return status;
  }
  void open_breaker() {
    server_->fail(Status::io_error("down"));
    EXPECT_EQ(run(look_up).code(), StatusCode::kIoError);
    EXPECT_FALSE(client_->is_available());
  }

  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  std::mutex mutex_;
  std::vector<StatusCode> changes_;
  std::unique_ptr<Client> client_ = make_client();
};

TEST_F(ClientTest, it_connects_once_there_is_work_and_gives_back_what_the_work_returned) {
  EXPECT_TRUE(client_->is_available());
  EXPECT_EQ(server_->connections(), 0);
  EXPECT_TRUE(run(look_up).is_ok());
  EXPECT_EQ(run([](Backend&) { return Status::not_found("nothing"); }).message(), "nothing");
  EXPECT_EQ(server_->connections(), 1) << "one caller needs one connection";
  EXPECT_EQ(server_->calls(ServerCall::kGet), 1);
}

TEST_F(ClientTest, a_caller_waits_no_longer_than_he_said_and_the_work_goes_on) {
  std::atomic<bool> is_done{false};
  EXPECT_TRUE(run(look_up).is_ok());
  server_->hang();
  const auto started = Client::Clock::now();
  const Status status = run(
      [&is_done](Backend& backend) {
        Status answer = look_up(backend);
        is_done = true;
        return answer;
      },
      milliseconds(100));
  EXPECT_LT(Client::Clock::now() - started, kSoon);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_NE(status.message().find("100 ms"), std::string::npos);
  EXPECT_FALSE(is_done);
  EXPECT_FALSE(client_->is_available());
  EXPECT_EQ(changes(), std::vector<StatusCode>{StatusCode::kBusy});
  server_->release();
  EXPECT_TRUE(eventually([&] { return is_done.load(); }));
}

TEST_F(ClientTest, while_it_is_open_nobody_waits_and_the_server_is_not_asked) {
  open_breaker();
  const int calls = server_->calls(ServerCall::kGet);
  server_->hang();
  const auto started = Client::Clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run(look_up).code(), StatusCode::kBusy);
  EXPECT_LT(Client::Clock::now() - started, kSoon);
  EXPECT_EQ(server_->calls(ServerCall::kGet), calls);
}

TEST_F(ClientTest, many_failures_at_once_open_it_once) {
  server_->hang();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < Client::kMostConnections; ++t) {
    threads.emplace_back([this] { EXPECT_EQ(run(look_up).code(), StatusCode::kIoError); });
  }
  EXPECT_TRUE(eventually([&] {
    return server_->calls(ServerCall::kPing) == static_cast<int>(Client::kMostConnections);
  }));
  server_->fail(Status::io_error("down"));
  server_->release();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(changes(), std::vector<StatusCode>{StatusCode::kIoError});
}

// The only thread there is hangs in a call, as in a name lookup, after which others would succeed.
TEST_F(ClientTest, a_probe_closes_it_also_while_the_thread_that_failed_still_hangs) {
  std::atomic<bool> is_hanging{true};
  const auto hang = [&is_hanging](Backend&) {
    EXPECT_TRUE(eventually([&] { return !is_hanging; }));
    return Status::ok();
  };
  EXPECT_EQ(run_until_open(hang).code(), StatusCode::kBusy);
  EXPECT_TRUE(eventually([&] { return client_->is_available(); }));
  EXPECT_TRUE(eventually([&] { return changes().size() == 2; }));
  EXPECT_EQ(changes(), (std::vector<StatusCode>{StatusCode::kBusy, StatusCode::kOk}));
  EXPECT_TRUE(run(look_up).is_ok());
  is_hanging = false;
  client_ = nullptr;
}

TEST_F(ClientTest, a_server_that_is_full_or_closed_to_writers_or_lacks_a_value_is_not_left_alone) {
  for (const StatusCode code :
       {StatusCode::kNoSpace, StatusCode::kForeign, StatusCode::kNotFound}) {
    EXPECT_EQ(run([code](Backend&) { return Status(code, "so"); }).code(), code);
    EXPECT_TRUE(client_->is_available());
  }
  EXPECT_TRUE(changes().empty());
}

TEST_F(ClientTest, every_other_failure_opens_it) {
  for (const StatusCode code :
       {StatusCode::kIoError, StatusCode::kBusy, StatusCode::kInvalidArgument,
        StatusCode::kCorruption, StatusCode::kUnsupportedVersion}) {
    client_ = make_client();
    EXPECT_EQ(run([code](Backend&) { return Status(code, "so"); }).code(), code);
    EXPECT_FALSE(client_->is_available());
  }
  EXPECT_EQ(changes().size(), 5u);
}

TEST_F(ClientTest, an_exception_of_the_work_is_a_failure_that_does_not_concern_the_server) {
  const Status status = run([](Backend&) -> Status { throw std::runtime_error("oh"); });
  EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(status.message(), "oh");
  EXPECT_TRUE(client_->is_available());
  EXPECT_TRUE(run(look_up).is_ok());
}

TEST_F(ClientTest, a_backend_that_cannot_be_made_is_a_failure_and_the_work_is_not_done) {
  bool was_done = false;
  const auto work = [&was_done](Backend&) {
    was_done = true;
    return Status::ok();
  };
  server_->refuse_connections(Status::invalid_argument("no such engine"));
  EXPECT_EQ(run(work).message(), "no such engine");
  EXPECT_FALSE(client_->is_available());
  client_ = make_client([]() -> Result<std::unique_ptr<Backend>> { throw std::bad_alloc(); });
  EXPECT_FALSE(run(work).is_ok());
  EXPECT_FALSE(was_done);
}

TEST_F(ClientTest, a_backend_is_tried_again_after_it_could_not_be_made) {
  server_->refuse_connections(Status::no_space("not now"));
  EXPECT_EQ(run(look_up).code(), StatusCode::kNoSpace);
  server_->refuse_connections(Status::ok());
  EXPECT_TRUE(run(look_up).is_ok());
}

TEST_F(ClientTest, a_server_that_cannot_be_reached_is_no_server_to_work_on) {
  server_->fail(Status::io_error("no route"));
  bool was_done = false;
  EXPECT_EQ(run([&was_done](Backend&) {
              was_done = true;
              return Status::ok();
            }).message(),
            "no route");
  EXPECT_FALSE(was_done);
}

TEST_F(ClientTest, thirty_two_threads_share_eight_connections) {
  constexpr int kThreads = 32;
  constexpr int kCalls = 50;
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, &done] {
      for (int i = 0; i < kCalls; ++i) done += run(look_up).is_ok() ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(done, kThreads * kCalls);
  EXPECT_EQ(server_->calls(ServerCall::kGet), kThreads * kCalls);
  EXPECT_LE(server_->connections(), static_cast<int>(Client::kMostConnections));
  EXPECT_LE(server_->most_at_once(), static_cast<int>(Client::kMostConnections));
  EXPECT_TRUE(changes().empty());
}

// It says nothing of the server that others keep its connections busy.
TEST_F(ClientTest, a_caller_for_whom_no_connection_is_free_gives_up_and_opens_nothing) {
  server_->hang();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < Client::kMostConnections; ++t) {
    threads.emplace_back([this] { EXPECT_TRUE(run(look_up).is_ok()); });
  }
  EXPECT_TRUE(eventually([&] {
    return server_->calls(ServerCall::kPing) == static_cast<int>(Client::kMostConnections);
  }));
  bool was_done = false;
  const Status status = run(
      [&was_done](Backend&) {
        was_done = true;
        return Status::ok();
      },
      milliseconds(10));
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_NE(status.message().find("in use"), std::string::npos);
  EXPECT_TRUE(client_->is_available());
  server_->release();
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(was_done);
}

// A host's handlers expect the host's threads.
TEST_F(ClientTest, signals_are_not_delivered_to_its_threads) {
  sigset_t blocked;
  sigemptyset(&blocked);
  EXPECT_TRUE(run([&blocked](Backend&) {
                pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
                return Status::ok();
              }).is_ok());
  EXPECT_TRUE(sigismember(&blocked, SIGPIPE) == 1 && sigismember(&blocked, SIGINT) == 1);
}

TEST_F(ClientTest, it_ends_at_once_when_its_threads_are_idle) {
  EXPECT_TRUE(run(look_up).is_ok());
  const auto started = Client::Clock::now();
  client_ = nullptr;
  EXPECT_LT(Client::Clock::now() - started, Client::kLongestGoodbye / 2);
}

TEST_F(ClientTest, it_ends_within_its_time_while_a_backend_hangs_and_tells_nothing_afterwards) {
  server_->hang();
  EXPECT_EQ(run_until_open(look_up).code(), StatusCode::kBusy);
  const auto started = Client::Clock::now();
  client_ = nullptr;
  EXPECT_LT(Client::Clock::now() - started, Client::kLongestGoodbye + kSoon);
  server_->fail(Status::io_error("down"));
  server_->release();  // its thread goes on with what belongs to it alone
  EXPECT_TRUE(eventually([&] { return server_.use_count() == 1; })) << "its connection is gone";
  EXPECT_EQ(changes(), std::vector<StatusCode>{StatusCode::kBusy});
}

#if MODCACHE_CAN_FORK_WITH_THREADS
TEST_F(ClientTest, a_forked_child_gets_threads_and_connections_of_its_own) {
  EXPECT_TRUE(run(look_up).is_ok());
  testing::ChildProcess child([this] {
    ::alarm(20);
    if (!run(look_up).is_ok()) return 1;
    if (server_->connections() != 2) return 2;
    client_ = nullptr;
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(run(look_up).is_ok());
  EXPECT_EQ(server_->connections(), 1);
}

// None of the child's threads would probe it, so it would be left alone for ever.
TEST_F(ClientTest, a_child_asks_a_server_that_its_parent_left_alone) {
  open_breaker();
  server_->fail(Status::ok());
  testing::ChildProcess child([this] {
    ::alarm(20);
    if (!client_->is_available()) return 1;
    return run(look_up).is_ok() ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ClientTest, a_child_that_is_forked_while_others_are_told_of_a_change_can_tell_itself) {
  std::atomic<bool> is_telling{false};
  client_ = std::make_unique<Client>(ValueServer::connect_to(server_), [&](const Status&) {
    is_telling = true;
    std::this_thread::sleep_for(milliseconds(30));
  });
  server_->fail(Status::io_error("down"));
  std::thread caller([this] { EXPECT_EQ(run(look_up).code(), StatusCode::kIoError); });
  EXPECT_TRUE(eventually([&] { return is_telling.load(); }));
  testing::ChildProcess child([&] {
    ::alarm(20);
    is_telling = false;
    return run(look_up).code() == StatusCode::kIoError && is_telling ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
  caller.join();
}
#endif

}  // namespace
}  // namespace modcache::remote
