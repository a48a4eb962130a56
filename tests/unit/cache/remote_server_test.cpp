// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_server.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/directory_bytes.h"
#include "support/fake_backend.h"
#include "support/temporary_directory.h"

namespace modcache::cache {
namespace {

using testing::ServerCall;
using testing::ValueServer;

class QuietListener final : public remote::WriteBehind::Listener {
 public:
  void on_written(std::size_t) override {}
  void on_dropped(std::size_t, const Status&) override {}
};

class RemoteServerTest : public ::testing::Test {
 protected:
  using Opened = Result<std::shared_ptr<RemoteServer>>;

  ~RemoteServerTest() override {
    ::unsetenv("MODCACHE_REMOTE_KEY");
    ::unsetenv("MODCACHE_REMOTE_LIBRARY");
    server_->release();
  }

  Opened open(const std::string& address) {
    settings_.remote = address;
    const auto connect = [this](const Settings&) -> Result<remote::Client::MakeBackend> {
      return ValueServer::connect_to(server_);
    };
    return RemoteServer::open(settings_, connect, listener_, nullptr);
  }
  std::shared_ptr<RemoteServer> opened(const std::string& address = "redis://h") {
    const Opened remote = open(address);
    EXPECT_TRUE(remote.is_ok()) << remote.status().message();
    return remote.is_ok() ? remote.value() : nullptr;
  }
  void write(RemoteServer& remote, const std::string& name) {
    std::vector<remote::WriteBehind::Write> writes(1);
    writes[0].name = name;
    writes[0].encode = []() -> Result<std::string> { return std::string("value"); };
    remote.writes().push(std::move(writes));
    EXPECT_TRUE(
        remote.writes().flush(remote::Client::Clock::now() + std::chrono::seconds(20)).is_ok());
  }

  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  const Digest128 address_{1, 2};
  testing::TemporaryDirectory directory_;
  Settings settings_;
  QuietListener listener_;
};

TEST_F(RemoteServerTest, names_of_entries_have_the_prefix) {
  const auto remote = opened();
  const std::string rest = "/e/00000000000000010000000000000002";
  EXPECT_EQ(remote->entry_name(address_), "modcache" + rest);
  EXPECT_EQ(opened("redis://h?prefix=team/a-1_b.c")->entry_name(address_), "team/a-1_b.c" + rest);
}

TEST_F(RemoteServerTest, a_prefix_with_other_characters_is_refused_and_named) {
  for (const char* prefix : {"a b", "a:b", "a*", "a%0Ab", "%C3%A9", "a%2525", "{a}"}) {
    const Status status = open(std::string("redis://:pw@h?prefix=") + prefix).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << prefix;
    EXPECT_NE(status.message().find("prefix"), std::string::npos);
    EXPECT_EQ(status.message().find("pw"), std::string::npos);
  }
}

TEST_F(RemoteServerTest, teams_with_different_keys_have_different_names_and_seals) {
  const auto plain = opened();
  ::setenv("MODCACHE_REMOTE_KEY", "ours", 1);
  const auto ours = opened();
  const auto same = opened();
  const std::string path = directory_ / "key";
  testing::write_file(path, "theirs\n");
  const auto theirs = opened("redis://h?key_file=" + path);
  EXPECT_EQ(ours->entry_name(address_), same->entry_name(address_));
  EXPECT_NE(ours->entry_name(address_), plain->entry_name(address_));
  EXPECT_NE(ours->entry_name(address_), theirs->entry_name(address_));
  EXPECT_NE(ours->generations().names("s"), theirs->generations().names("s"));
  EXPECT_TRUE(theirs->seal().has_key()) << "the file goes before the environment";
  EXPECT_EQ(ours->entry_name(address_).find("ours"), std::string::npos);
  std::string bytes = "content";
  ours->seal().put_on(bytes);
  std::string_view view = bytes;
  EXPECT_FALSE(theirs->seal().take_off(view) || plain->seal().take_off(view));
  EXPECT_TRUE(same->seal().take_off(view));
}

TEST_F(RemoteServerTest, the_key_of_the_file_and_of_the_environment_is_the_same_one) {
  const std::string path = directory_ / "key";
  testing::write_file(path, "secret\n");
  const auto by_file = opened("redis://h?key_file=" + path);
  ::setenv("MODCACHE_REMOTE_KEY", "secret", 1);
  EXPECT_EQ(opened()->entry_name(address_), by_file->entry_name(address_));
}

// Without its key a machine would put entries where the team does not look.
TEST_F(RemoteServerTest, a_key_file_that_cannot_be_read_is_no_missing_key) {
  ::setenv("MODCACHE_REMOTE_KEY", "another", 1);
  const Status status = open("redis://h?key_file=" + (directory_ / "gone")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("key_file"), std::string::npos);
}

TEST_F(RemoteServerTest, namespaces_have_their_own_generations_on_one_server) {
  const auto one = opened();
  settings_.name_space = "other";
  const auto other = opened();
  EXPECT_NE(one->generations().names("s"), other->generations().names("s"));
}

TEST_F(RemoteServerTest, opening_connects_to_nothing_and_a_failure_to_connect_is_told) {
  opened();
  EXPECT_EQ(server_->connections(), 0);
  settings_.remote = "redis://h";
  const auto refuse = [](const Settings&) -> Result<remote::Client::MakeBackend> {
    return Status::io_error("no library");
  };
  EXPECT_EQ(RemoteServer::open(settings_, refuse, listener_, nullptr).status().message(),
            "no library");
}

TEST_F(RemoteServerTest, the_time_to_live_is_that_of_the_settings) {
  settings_.remote_ttl_s = 60;
  const auto remote = opened();
  write(*remote, "a");
  EXPECT_EQ(server_->ttl_ms("a"), 60'000);
}

TEST_F(RemoteServerTest, a_generation_is_asked_for_once_and_agreed_on) {
  const auto ours = opened();
  const auto theirs = opened();
  const auto made = ours->find_or_make_generation("scope");
  ASSERT_TRUE(made.is_ok());
  const int gets = server_->calls(ServerCall::kGet);
  EXPECT_TRUE(ours->find_or_make_generation("scope").is_ok());
  EXPECT_EQ(server_->calls(ServerCall::kGet), gets) << "it is known";
  EXPECT_EQ(theirs->find_or_make_generation("scope").value().generation, made.value().generation);
}

TEST_F(RemoteServerTest, a_generation_that_cannot_be_had_is_a_failure_and_work_may_outlive_it) {
  settings_.remote_timeout_ms = 1;
  auto remote = opened();
  server_->hang();
  EXPECT_EQ(remote->find_or_make_generation("scope").status().code(), StatusCode::kBusy);
  remote = nullptr;  // its work goes on, and is the last that has it
  server_->release();
}

TEST_F(RemoteServerTest, by_library_credentials_and_the_library_are_looked_for_first) {
  ::setenv("MODCACHE_REMOTE_LIBRARY", (directory_ / "gone.so").c_str(), 1);
  settings_.remote = "redis://h";
  EXPECT_EQ(connect_by_library(settings_).status().code(), StatusCode::kIoError);
  settings_.remote = "redis://h?auth_file=" + (directory_ / "gone");
  EXPECT_EQ(connect_by_library(settings_).status().code(), StatusCode::kInvalidArgument);
  settings_.remote = "no address";
  EXPECT_EQ(connect_by_library(settings_).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace modcache::cache
