// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_push.h"

#include <gmock/gmock.h>

#include <string>

#include "store/packing/packing.h"
#include "support/directory_bytes.h"
#include "support/move_fixture.h"

namespace modcache::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::open_store;
using testing::ServerCall;
using testing::ValueServer;

class RemotePushTest : public testing::MoveTest {
 protected:
  // What the server says of an entry's record.
  remote::Record record_of(const ContextPtr& context, const std::string& key) {
    bytes_ = server_->value(name_of(context, key)).value_or("");
    const auto record = remote::decode_record(bytes_, remote::Seal());
    EXPECT_TRUE(record.is_ok()) << record.status().message();
    return record.is_ok() ? record.value() : remote::Record{};
  }
  // A clear of the whole server by another machine.
  void clear(std::int64_t older_than_us = 0) {
    const remote::Seal seal;
    remote::Generations generations(seal, "modcache", "");
    const auto backend = ValueServer::connect_to(server_)();
    ASSERT_TRUE(generations.clear("", older_than_us, *backend.value()).is_ok());
  }

 private:
  std::string bytes_;
};

TEST_F(RemotePushTest, writes_records_as_the_tier_reads_them) {
  const auto context = context_of("scope");
  put(from_, context, "key", 1'000'000);
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 1);
  EXPECT_EQ(pushed.payload_bytes, payload_of("key").size());
  EXPECT_TRUE(pushed.failure.is_ok());
  const remote::Record record = record_of(context, "key");
  EXPECT_EQ(record.context, context->digest);
  EXPECT_EQ(record.key, "key");
  EXPECT_EQ(record.header, header_of("key"));
  EXPECT_EQ(record.payload, payload_of("key"));
  EXPECT_EQ(record.run_us, 7);
  EXPECT_EQ(record.stored_at_us, 1'000'000);
  const remote::Seal seal;
  remote::Generations generations(seal, "modcache", "");
  const auto backend = ValueServer::connect_to(server_)();
  const auto current = generations.find_or_make("scope", *backend.value());
  EXPECT_TRUE(record.generation == current.value().generation);
  const auto text =
      remote::decode_context(server_->value(name_of_context(context)).value_or(""), seal);
  EXPECT_EQ(text.value().description, context->description);
}

TEST_F(RemotePushTest, what_is_there_is_not_written_again) {
  fill(1500);
  EXPECT_EQ(push().entries, 1500);
  const int writes = server_->calls(ServerCall::kPut);
  const PushSummary again = push();
  EXPECT_EQ(again.entries, 0);
  EXPECT_EQ(again.there, 1500);
  EXPECT_EQ(server_->calls(ServerCall::kPut), writes);
  server_->forget(name_of(context_of("scope"), key_of(700)));
  EXPECT_EQ(push().entries, 1);
}

TEST_F(RemotePushTest, the_newer_value_stays) {
  const auto context = context_of("scope");
  put(from_, context, "older here", 1'000'000);
  put(from_, context, "newer here", 1'000'000);
  push();
  put(from_, context, "newer here", 2'000'000);
  server_->set(name_of(context, "older here"),
               remote::encode_record({record_of(context, "older here").generation, context->digest,
                                      "older here", header_of("k"), "newer", 7, 3'000'000},
                                     remote::Seal()));
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 1);
  EXPECT_EQ(pushed.there, 1);
  EXPECT_EQ(record_of(context, "newer here").stored_at_us, 2'000'000);
  EXPECT_EQ(record_of(context, "older here").payload, "newer");
}

TEST_F(RemotePushTest, a_dry_run_counts_and_leaves_no_trace) {
  fill(20);
  const PushSummary dry = push({}, /*dry=*/true);
  EXPECT_EQ(dry.entries, 20);
  EXPECT_GT(dry.payload_bytes, 0u);
  EXPECT_THAT(server_->names(), IsEmpty());
  push();
  EXPECT_EQ(push({}, /*dry=*/true).there, 20);
}

TEST_F(RemotePushTest, after_a_clear_everything_is_written_that_may_be_that_old) {
  const auto context = context_of("scope");
  put(from_, context, "old", 1'000'000);
  put(from_, context, "new", 5'000'000);
  push();
  clear();
  EXPECT_EQ(push().entries, 2) << "the whole directory is meant to be there";
  clear(/*older_than_us=*/3'000'000);
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.cleared, 1);
  EXPECT_EQ(pushed.there, 1);
}

TEST_F(RemotePushTest, a_filter_names_namespace_and_scope) {
  for (const char* name_space : {"", "team"}) {
    for (const char* scope : {"a", "b"}) put(from_, context_of(scope, name_space), "key");
  }
  EXPECT_EQ(push({"team", "a"}).entries, 1);
  EXPECT_TRUE(server_->has(name_of(context_of("a", "team"), "key")));
  EXPECT_EQ(push({"", std::nullopt}).entries, 2);
  EXPECT_EQ(push({std::nullopt, "b"}).entries, 1);
  EXPECT_EQ(push().there, 4);
  EXPECT_EQ(push({std::nullopt, "c"}).seen(), 0);
  const auto of_team = record_of(context_of("a", "team"), "key").generation;
  EXPECT_NE(of_team.of_namespace, record_of(context_of("a"), "key").generation.of_namespace);
}

TEST_F(RemotePushTest, a_pack_is_pushed_as_a_directory_is) {
  fill(300);
  const std::string pack = folder_ / "pack";
  ASSERT_TRUE(store::write_pack(files_, from_, pack).is_ok());
  const auto bulk = connect();
  const auto pushed = push_entries(source_of(pack), *bulk, {});
  EXPECT_EQ(pushed.value().entries, 300);
  EXPECT_EQ(push().there, 300);
}

TEST_F(RemotePushTest, a_server_that_is_away_for_a_moment_is_asked_again) {
  fill(10);
  int writes = 0;
  server_->before_each([&](ServerCall call) {
    if (call != ServerCall::kPut) return;
    server_->fail(++writes == 2 ? Status::io_error("away") : Status());
  });
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 10);
  EXPECT_TRUE(pushed.failure.is_ok());
}

TEST_F(RemotePushTest, a_server_that_fails_ends_it_and_the_next_push_goes_on) {
  fill(1500);
  int writes = 0;
  server_->before_each([&](ServerCall call) {
    if (call == ServerCall::kPut && ++writes == 4) server_->fail(Status::io_error("it broke"));
  });
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 1024);
  EXPECT_THAT(pushed.failure.message(), HasSubstr("it broke"));
  EXPECT_THAT(pushed.failure.message(), HasSubstr("redis://user:***@host:6379/0"));
  EXPECT_THAT(pushed.failure.message(), Not(HasSubstr("secret")));
  server_->before_each(nullptr);
  server_->fail(Status());
  const PushSummary rest = push();
  EXPECT_EQ(rest.entries, 1500 - 1024);
  EXPECT_EQ(rest.there, 1024);
}

TEST_F(RemotePushTest, a_full_server_ends_it_at_once) {
  fill(10);
  push();
  clear();
  server_->refuse_writes(Status::no_space("full"));
  const int writes = server_->calls(ServerCall::kPut);
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 0);
  EXPECT_EQ(pushed.failure.code(), StatusCode::kNoSpace);
  EXPECT_LE(server_->calls(ServerCall::kPut) - writes, 2);
}

TEST_F(RemotePushTest, what_a_part_of_the_server_does_not_take_is_counted) {
  fill(600);
  server_->leave_out({name_of(context_of("scope"), key_of(3))});
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 599);
  EXPECT_EQ(pushed.failed, 1);
  EXPECT_THAT(pushed.failure.message(), HasSubstr("a part of it"));
}

TEST_F(RemotePushTest, damaged_entries_stay_where_they_are) {
  fill(5);
  for (const std::string& segment : testing::segment_files(from_)) {
    const std::string bytes = testing::file_bytes(segment);
    testing::flip_bit(segment, bytes.find(payload_of(key_of(2))) + 5);
  }
  const PushSummary pushed = push();
  EXPECT_EQ(pushed.entries, 4);
  EXPECT_EQ(pushed.broken, 1);
  EXPECT_FALSE(server_->has(name_of(context_of("scope"), key_of(2))));
}

TEST_F(RemotePushTest, a_time_to_live_holds_for_all_but_marks) {
  settings_.remote_ttl_s = 60;
  fill(1);
  push();
  const auto context = context_of("scope");
  EXPECT_EQ(server_->ttl_ms(name_of(context, key_of(0))), 60'000);
  EXPECT_EQ(server_->ttl_ms(name_of_context(context)), 60'000);
  // The context must not go before entries that are pushed later.
  const int writes = server_->calls(ServerCall::kPut);
  push();
  EXPECT_EQ(server_->calls(ServerCall::kPut), writes + 1);
}

TEST_F(RemotePushTest, answers_may_take_longer_than_a_call_would_wait) {
  settings_.remote_timeout_ms = 500;
  fill(1);
  push();
  EXPECT_EQ(connected_with_.remote_timeout_ms, 500 * RemoteBulk::kTimesPatience);
}

TEST_F(RemotePushTest, many_contexts_go_in_few_round_trips) {
  const auto store = open_store(from_);
  for (int i = 0; i < 400; ++i) put(*store, context_of("scope", "", "m" + std::to_string(i)), "k");
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_EQ(push().entries, 400);
  EXPECT_LE(server_->calls(ServerCall::kPut), 2);
  const int reads = server_->calls(ServerCall::kGet);
  EXPECT_EQ(push().there, 400);
  EXPECT_LE(server_->calls(ServerCall::kGet) - reads, 3);
}

TEST_F(RemotePushTest, a_server_that_cannot_be_had_is_named_without_its_password) {
  server_->refuse_connections(Status::io_error("connection refused"));
  const auto bulk = RemoteBulk::connect(
      settings_, [this](const Settings&) -> Result<remote::Client::MakeBackend> {
        return ValueServer::connect_to(server_);
      });
  ASSERT_FALSE(bulk.is_ok());
  EXPECT_EQ(bulk.status().message(),
            "the server 'redis://user:***@host:6379/0': connection refused");
}

}  // namespace
}  // namespace modcache::cache
