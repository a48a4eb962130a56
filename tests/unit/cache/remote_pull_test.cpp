// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_pull.h"

#include <gmock/gmock.h>

#include <string>
#include <string_view>

#include "store/verify/verify.h"
#include "support/move_fixture.h"

namespace modcache::cache {
namespace {

using ::testing::HasSubstr;
using testing::ServerCall;
using testing::ValueServer;

class RemotePullTest : public testing::MoveTest {
 protected:
  // Puts a record as the tier of some machine would, or a stranger.
  void serve(const std::string& name, const remote::Record& record) {
    server_->set(name, remote::encode_record(record, remote::Seal()));
  }
  remote::Generation generation_of(const std::string& scope) {
    const remote::Seal seal;
    remote::Generations generations(seal, "modcache", "");
    const auto backend = ValueServer::connect_to(server_)();
    return generations.find_or_make(scope, *backend.value()).value().generation;
  }
  bool is_clean(const std::string& directory) {
    store::VerifyOptions options;
    options.directory = directory;
    const auto verified = store::verify_directory(files_, options);
    return verified.is_ok() && verified.value().is_clean();
  }
};

TEST_F(RemotePullTest, a_directory_comes_back_as_it_went) {
  fill(1300);
  put(from_, context_of("scope", "team"), "key");
  put(from_, context_of("other"), std::string("\0\xff\n", 3));
  push();
  const PullSummary pulled = pull();
  EXPECT_EQ(pulled.entries, 1302);
  EXPECT_EQ(pulled.seen(), 1302);
  EXPECT_TRUE(pulled.failure.is_ok());
  EXPECT_EQ(entries_in(to_), entries_in(from_));
  EXPECT_TRUE(is_clean(to_));
  const PullSummary again = pull();
  EXPECT_EQ(again.entries, 0);
  EXPECT_EQ(again.there, 1302);
}

TEST_F(RemotePullTest, what_the_directory_has_stays) {
  put(from_, context_of("scope"), "key", 5'000'000);
  push();
  put(to_, context_of("scope"), "key", 1'000'000);
  EXPECT_EQ(pull().there, 1);
  EXPECT_EQ(std::get<3>(entries_in(to_).begin()->second), 1'000'000);
}

TEST_F(RemotePullTest, a_filter_names_namespace_and_scope) {
  for (const char* name_space : {"", "team"}) {
    for (const char* scope : {"a", "b"}) put(from_, context_of(scope, name_space), "key");
  }
  push();
  EXPECT_EQ(pull({"team", "a"}).entries, 1);
  EXPECT_EQ(pull({"", std::nullopt}).entries, 2);
  const PullSummary rest = pull();
  EXPECT_EQ(rest.entries, 1);
  EXPECT_EQ(rest.there, 3);
}

TEST_F(RemotePullTest, what_was_cleared_is_counted_and_stays_there) {
  fill(3);
  put(from_, context_of("other"), "old", 1'000'000);
  put(from_, context_of("other"), "new");
  push();
  const remote::Seal seal;
  remote::Generations generations(seal, "modcache", "");
  const auto backend = ValueServer::connect_to(server_)();
  ASSERT_TRUE(generations.clear("scope", 0, *backend.value()).is_ok());
  ASSERT_TRUE(generations.clear("other", 2'000'000, *backend.value()).is_ok());
  const PullSummary pulled = pull();
  EXPECT_EQ(pulled.entries, 1);
  EXPECT_EQ(pulled.cleared, 4);
}

TEST_F(RemotePullTest, without_marks_nothing_counts_and_none_is_made) {
  fill(3);
  push();
  for (const std::string& name : server_->names()) {
    if (name.find("/ctl/") != std::string::npos) server_->forget(name);
  }
  const std::size_t names = server_->names().size();
  EXPECT_EQ(pull().cleared, 3);
  EXPECT_EQ(server_->names().size(), names);
}

TEST_F(RemotePullTest, damaged_records_are_counted_and_left_out) {
  fill(10);
  push();
  const auto context = context_of("scope");
  server_->flip_byte(name_of(context, key_of(1)), 80);
  server_->truncate(name_of(context, key_of(2)), 90);
  server_->set(name_of(context, key_of(3)), "");
  server_->set(name_of(context, key_of(4)), *server_->value(name_of(context, key_of(5))));
  const auto generation = generation_of("scope");
  const std::string header = header_of("k");  // a record borrows its parts
  const auto sound = [&](std::string_view key) {
    return remote::Record{generation, context->digest, key, header, "p", 1, 1'000'000};
  };
  // Whole records that no directory may have.
  remote::Record record = sound("bad header");
  record.header = "?";
  serve(name_of(context, "bad header"), record);
  record = sound("bad time");
  record.stored_at_us = 0;
  serve(name_of(context, "bad time"), record);
  record = sound("");
  serve(name_of(context, ""), record);
  const PullSummary pulled = pull();
  EXPECT_EQ(pulled.entries, 6);
  EXPECT_EQ(pulled.damaged, 7);
  EXPECT_TRUE(is_clean(to_));
}

TEST_F(RemotePullTest, what_is_not_ours_is_counted_apart) {
  fill(2);
  push();
  server_->set("modcache/e/some folder/x", "text");
  std::string newer = *server_->value(name_of(context_of("scope"), key_of(1)));
  newer[4] = 99;
  server_->set(name_of(context_of("scope"), "newer"), newer);
  const PullSummary pulled = pull();
  EXPECT_EQ(pulled.entries, 2);
  EXPECT_EQ(pulled.foreign, 2);
}

TEST_F(RemotePullTest, an_entry_needs_its_context) {
  put(from_, context_of("lost"), "key");
  put(from_, context_of("broken"), "key");
  put(from_, context_of("whole"), "key");
  push();
  server_->forget(name_of_context(context_of("lost")));
  server_->flip_byte(name_of_context(context_of("broken")), 20);
  const PullSummary pulled = pull();
  EXPECT_EQ(pulled.entries, 1);
  EXPECT_EQ(pulled.no_context, 1);
  EXPECT_EQ(pulled.damaged, 1);
}

// A right seal says nothing of whether the text is that of the digest.
TEST_F(RemotePullTest, a_context_under_the_digest_of_another_is_none) {
  const auto victim = context_of("victim");
  const auto other = context_of("other");
  put(from_, victim, "key");
  push();
  server_->set(name_of_context(victim),
               remote::encode_context({other->scope, other->description}, remote::Seal()));
  EXPECT_EQ(pull().damaged, 1);
  server_->set(name_of_context(victim),
               remote::encode_context({"another scope", victim->description}, remote::Seal()));
  EXPECT_EQ(pull().damaged, 1);
  server_->set(name_of_context(victim),
               remote::encode_context({"text", "no description"}, remote::Seal()));
  EXPECT_EQ(pull().damaged, 1);
  EXPECT_TRUE(entries_in(to_).empty());
}

TEST_F(RemotePullTest, nothing_leaves_to_make_room) {
  fill(2000);
  push();
  put(to_, context_of("own"), "key");
  budget_bytes_ = 400 << 10;
  const PullSummary pulled = pull();
  EXPECT_GT(pulled.not_kept, 0);
  EXPECT_EQ(pulled.entries + pulled.not_kept, 2000);
  EXPECT_EQ(entries_in(to_).count(context_of("own")->description + "/key"), 1u);
  budget_bytes_ = 1 << 30;
  EXPECT_EQ(pull().entries, pulled.not_kept);
}

TEST_F(RemotePullTest, what_came_before_a_failure_is_kept) {
  fill(9000);
  push();
  int reads = 0;
  server_->before_each([&](ServerCall call) {
    if (call == ServerCall::kGet && ++reads > 2) server_->fail(Status::io_error("it broke"));
  });
  // The second batch finds its context known, and asks for marks a second later alone.
  int visits = 0;
  auto bulk = connect();
  store::StoreOptions into;
  into.directory = to_;
  const auto pulled = pull_entries(files_, *bulk, into, {}, [&](const PullSummary&) {
    if (++visits == 1) std::this_thread::sleep_for(remote::Generations::kLookAgainAfter * 1.1);
  });
  ASSERT_TRUE(pulled.is_ok());
  EXPECT_EQ(pulled.value().entries, 8192);
  EXPECT_THAT(pulled.value().failure.message(), HasSubstr("it broke"));
  server_->before_each(nullptr);
  server_->fail(Status());
  EXPECT_EQ(pull().entries, 9000 - 8192);
}

TEST_F(RemotePullTest, another_secret_is_another_cache) {
  ::setenv("MODCACHE_REMOTE_KEY", "ours", 1);
  fill(3);
  push();
  ::setenv("MODCACHE_REMOTE_KEY", "theirs", 1);
  EXPECT_EQ(pull().seen(), 0);
  ::setenv("MODCACHE_REMOTE_KEY", "ours", 1);
  EXPECT_EQ(pull().entries, 3);
  ::unsetenv("MODCACHE_REMOTE_KEY");
}

}  // namespace
}  // namespace modcache::cache
