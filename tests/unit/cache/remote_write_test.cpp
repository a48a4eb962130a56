// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_write.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/clock.h"
#include "remote/record.h"
#include "support/fake_backend.h"

namespace modcache::cache {
namespace {

using testing::ValueServer;

class SilentListener final : public remote::WriteBehind::Listener {
 public:
  void on_written(std::size_t) override {}
  void on_dropped(std::size_t, const Status&) override {}
};

class RemoteWriteTest : public ::testing::Test {
 protected:
  ~RemoteWriteTest() override { server_->release(); }

  std::shared_ptr<RemoteServer> machine() {
    Settings settings;
    settings.remote = "redis://h";
    const auto connect = [this](const Settings&) -> Result<remote::Client::MakeBackend> {
      return ValueServer::connect_to(server_);
    };
    return RemoteServer::open(settings, connect, listener_, nullptr).value();
  }

  static void clear(RemoteServer& by) {
    const Status status = by.client().run(
        [&by](remote::Backend& backend) { return by.generations().clear("scope", 0, backend); },
        std::chrono::seconds(20));
    EXPECT_TRUE(status.is_ok()) << status.message();
  }

  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  SilentListener listener_;
};

TEST_F(RemoteWriteTest, what_waited_while_its_scope_was_cleared_is_not_written) {
  const auto here = machine();
  const auto cleared = here->find_or_make_generation("scope").value().generation;
  const MarkOfWrite mark(here->generations().clears(), here->generations().current("scope"));
  EXPECT_TRUE(mark.find(*here, "scope").value().generation == cleared);
  clear(*machine());
  EXPECT_TRUE(mark.find(*here, "scope").value().generation == cleared)
      << "by another machine: what is written with this mark is not found";
  clear(*here);
  EXPECT_EQ(mark.find(*here, "scope").status().code(), StatusCode::kIoError);
}

// A server that does not answer holds the writer up, and a clear comes first when it does.
TEST_F(RemoteWriteTest, what_is_cleared_while_its_mark_is_asked_for_is_not_written) {
  const auto here = machine();
  const MarkOfWrite mark(here->generations().clears(), here->generations().current("scope"));
  std::atomic<bool> is_cleared{false};
  server_->before_each([&](testing::ServerCall call) {
    if (call != testing::ServerCall::kGet || is_cleared.exchange(true)) return;
    clear(*here);
  });
  EXPECT_EQ(mark.find(*here, "scope").status().code(), StatusCode::kIoError);
}

TEST_F(RemoteWriteTest, an_entry_becomes_a_record_with_the_mark_of_its_push) {
  const auto here = machine();
  const auto generation = here->find_or_make_generation("scope").value().generation;
  const auto context =
      std::make_shared<const store::Context>(store::Context{{1, 2}, "scope", "description"});
  const Keys keys(context, "key");
  const EntryToWrite entry(*here,
                           std::make_shared<MarkOfWrite>(here->generations().clears(),
                                                         here->generations().current("scope")),
                           keys, 0);
  clear(*machine());

  const remote::WriteBehind::Write write = entry.write(/*payload_size_bytes=*/7, /*replaces=*/true);
  EXPECT_EQ(write.name, here->entry_name(keys.addresses[0]));
  EXPECT_EQ(write.size_bytes, 7u + 3u);
  EXPECT_TRUE(write.replaces);

  const std::string bytes = entry.encode("header", "payload", 250, 1'000'000).value();
  const remote::Record record = remote::decode_record(bytes, here->seal()).value();
  EXPECT_TRUE(record.generation == generation);
  EXPECT_EQ(record.context, context->digest);
  EXPECT_EQ(record.key, "key");
  EXPECT_EQ(record.header, "header");
  EXPECT_EQ(record.payload, "payload");
  EXPECT_EQ(record.run_us, 250);
  EXPECT_EQ(record.stored_at_us, 1'000'000);

  clear(*here);
  EXPECT_EQ(entry.encode("header", "payload", 250, 1'000'000).status().code(),
            StatusCode::kIoError);
}

}  // namespace
}  // namespace modcache::cache
