// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <valkey/read.h>
#include <valkey/valkey.h>

#include <string>
#include <vector>

#include "backends/redis/exchange.h"
#include "backends/redis/nodes.h"

namespace modcache::backends {
namespace {

// A reply as the library makes it of what a server sent; null: it is none.
ReplyPtr reply_of(const std::string& sent) {
  valkeyReader* const reader = valkeyReaderCreate();
  void* reply = nullptr;
  valkeyReaderFeed(reader, sent.data(), sent.size());
  const int outcome = valkeyReaderGetReply(reader, &reply);
  valkeyReaderFree(reader);
  return outcome == VALKEY_OK && reply != nullptr ? take_reply(reply) : nullptr;
}

StatusCode code_of_error(const std::string& text) {
  return status_of(reply_of("-" + text + "\r\n"), {}).code();
}

TEST(ReplyTest, an_error_means_what_its_first_word_says) {
  EXPECT_EQ(code_of_error("OOM command not allowed when used memory > 'maxmemory'."),
            StatusCode::kNoSpace);
  for (const char* text : {"READONLY You can't write against a read only replica.",
                           "MISCONF Errors writing to the AOF file", "NOREPLICAS Not enough good",
                           "NOPERM this user has no permissions"}) {
    EXPECT_EQ(code_of_error(text), StatusCode::kForeign) << text;
  }
  for (const char* text : {"NOAUTH Authentication required.", "WRONGPASS invalid username-password",
                           "DENIED running in protected mode"}) {
    EXPECT_EQ(code_of_error(text), StatusCode::kInvalidArgument) << text;
  }
  for (const char* text :
       {"ERR unknown command", "LOADING the dataset", "OOMPH", "oom x", "", " OOM"}) {
    EXPECT_EQ(code_of_error(text), StatusCode::kIoError) << text;
  }
}

TEST(ReplyTest, the_servers_words_are_in_the_message) {
  EXPECT_EQ(status_of(reply_of("-ERR no such thing\r\n"), {}).message(),
            "it says: ERR no such thing");
}

TEST(ReplyTest, no_reply_is_a_failure_and_answers_every_question) {
  const ReplyPtr none = reply_of("rubbish");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(status_of(none, {}).code(), StatusCode::kIoError);
  EXPECT_EQ(bytes_of(none).owner, nullptr);
  EXPECT_FALSE(is_error(none));
  EXPECT_FALSE(is_array(none, 0));
  EXPECT_TRUE(is_null(none));
  EXPECT_EQ(integer_of(none), 0);
  EXPECT_EQ(text_of(none), "");
}

TEST(ReplyTest, bytes_are_those_of_the_reply_and_keep_it) {
  SharedBytes bytes;
  {
    const ReplyPtr reply = reply_of(std::string("$5\r\na\0\r\nb\r\n", 12));
    ASSERT_TRUE(status_of(reply, {}).is_ok());
    bytes = bytes_of(reply);
    EXPECT_EQ(static_cast<const void*>(bytes.data), text_of(reply).data()) << "no copy";
  }
  EXPECT_EQ(bytes.view(), std::string_view("a\0\r\nb", 5));
  EXPECT_NE(bytes_of(reply_of("$0\r\n\r\n")).owner, nullptr) << "empty, but there";
}

// A server may send anything; a value is a string and nothing else.
TEST(ReplyTest, what_is_no_string_has_no_bytes) {
  for (const char* sent : {"$-1\r\n", ":5\r\n", "+OK\r\n", "-ERR x\r\n", "*1\r\n$1\r\na\r\n",
                           "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n"}) {
    EXPECT_EQ(bytes_of(reply_of(sent)).owner, nullptr) << sent;
  }
  EXPECT_TRUE(is_null(reply_of("$-1\r\n")));
  EXPECT_FALSE(is_null(reply_of("$0\r\n\r\n")));
  EXPECT_EQ(integer_of(reply_of(":-7\r\n")), -7);
  EXPECT_EQ(integer_of(reply_of("$1\r\n7\r\n")), 0);
}

TEST(ReplyTest, the_elements_of_an_array_are_asked_for_one_by_one) {
  const ReplyPtr reply =
      reply_of("*4\r\n$1\r\na\r\n$-1\r\n:3\r\n*3\r\n$1\r\nx\r\n:1\r\n$2\r\nyz\r\n");
  ASSERT_TRUE(is_array(reply, 4));
  EXPECT_FALSE(is_array(reply, 3));
  EXPECT_EQ(bytes_of_element(reply, 0).view(), "a");
  EXPECT_EQ(bytes_of_element(reply, 1).owner, nullptr);
  EXPECT_EQ(bytes_of_element(reply, 2).owner, nullptr);
  const SharedBytes kept = bytes_of_element(reply_of("*1\r\n$3\r\nabc\r\n"), 0);
  EXPECT_EQ(kept.view(), "abc") << "the element keeps the whole reply";
}

TEST(ReplyTest, credentials_that_a_server_repeats_are_not_shown) {
  remote::Address address;
  address.user = "somebody";
  address.password = "s3cret";
  const auto shown = [&](const std::string& text) { return without_secrets(text, address); };
  EXPECT_EQ(shown("ERR s3cret\x1b[31m of somebody"), "ERR ***?[31m of ***");
  EXPECT_EQ(shown("ERR unknown command 'AUTH', with args beginning with: 'somebody' 's3c"),
            "ERR unknown command 'AUTH'");
  EXPECT_EQ(shown(std::string(1000, 'x')), std::string(200, 'x') + "...");
  const Status status = status_of(reply_of("-OOM s3cret\r\n"), address);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_EQ(status.message(), "it says: OOM ***");
}

TEST(SlotMapTest, a_key_is_at_the_node_that_has_its_slot) {
  const std::string one = "*3\r\n:0\r\n:99\r\n*2\r\n$1\r\na\r\n:7000\r\n";
  const std::string two =
      "*4\r\n:100\r\n:16383\r\n*3\r\n$-1\r\n:7001\r\n$2\r\nid\r\n*2\r\n$1\r\nc\r\n:7002\r\n";
  const auto map = SlotMap::of(reply_of("*2\r\n" + one + two), "asked");
  ASSERT_TRUE(map.has_value());
  EXPECT_THAT(map->nodes(), ::testing::ElementsAre("a:7000", "asked:7001"));
  EXPECT_EQ(*map->node_of("foo"), "asked:7001") << "its slot is 12182";
  EXPECT_EQ(SlotMap::of(reply_of("*1\r\n" + one), "asked")->node_of("foo"), nullptr);
}

TEST(SlotMapTest, what_is_no_map_is_none) {
  EXPECT_FALSE(SlotMap::of(nullptr, "").has_value());
  for (const std::string range :
       {"*0\r\n", ":1\r\n", "*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*3\r\n:9\r\n:8\r\n*2\r\n$1\r\na\r\n:1\r\n", "*3\r\n:-1\r\n:8\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*3\r\n:0\r\n:8\r\n*1\r\n$1\r\na\r\n", "*3\r\n:0\r\n:8\r\n*2\r\n$1\r\na\r\n:0\r\n"}) {
    EXPECT_FALSE(SlotMap::of(reply_of("*1\r\n" + range), "").has_value()) << range;
  }
  EXPECT_FALSE(SlotMap::of(reply_of("*0\r\n"), "").has_value());
}

// A connection to nobody but this test.
class PipelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_), 0);
    connection_ = {valkeyConnectFd(ends_[0]), &valkeyFree};
    connection_->flags &= ~VALKEY_BLOCK;
  }
  void TearDown() override { ::close(ends_[1]); }
  void answer(const std::string& bytes) {
    ASSERT_EQ(::send(ends_[1], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  Status ask_two(Deadline deadline) {
    return ask_all(*connection_, {{{"GET", "a"}, nullptr}, {{"GET", "b"}, nullptr}}, deadline,
                   replies_);
  }

  int ends_[2] = {-1, -1};
  ContextPtr connection_{nullptr, &valkeyFree};
  std::vector<ReplyPtr> replies_;
};

TEST_F(PipelineTest, what_arrived_before_the_deadline_is_read_after_it) {
  answer("$1\r\na\r\n$1\r\nb\r\n");
  EXPECT_TRUE(ask_two(deadline_in(-1000)).is_ok());
  EXPECT_EQ(bytes_of(replies_[1]).view(), "b");
  EXPECT_TRUE(has_no_error(*connection_));
}

TEST_F(PipelineTest, a_connection_that_owes_replies_is_not_used_again) {
  answer("$1\r\na\r\n");
  EXPECT_EQ(ask_two(deadline_in(1)).code(), StatusCode::kBusy);
  EXPECT_EQ(bytes_of(replies_[0]).view(), "a");
  EXPECT_EQ(replies_[1], nullptr);
  EXPECT_FALSE(has_no_error(*connection_));
}

// As an exception between the two leaves it.
TEST_F(PipelineTest, commands_that_were_sent_and_not_listened_to_break_the_connection) {
  {
    Pipeline pipeline(*connection_, {0});
    pipeline.start({{{"GET", "a"}, nullptr}});
  }
  EXPECT_FALSE(has_no_error(*connection_));
}

TEST_F(PipelineTest, a_reply_to_nothing_breaks_the_connection) {
  answer("$1\r\na\r\n$1\r\nb\r\n+more\r\n");
  EXPECT_TRUE(ask_two(deadline_in(1000)).is_ok());
  EXPECT_FALSE(has_no_error(*connection_));
}

TEST_F(PipelineTest, a_reply_of_no_possible_length_is_refused_at_once) {
  answer("$4294967297\r\n");
  EXPECT_EQ(ask_two(deadline_in(60'000)).code(), StatusCode::kIoError);
}

TEST(NodeHealthTest, a_node_that_failed_is_left_alone_until_it_is_well) {
  NodeHealth& health = NodeHealth::instance();
  EXPECT_TRUE(health.may_try("node"));
  health.note_failure("node");
  EXPECT_FALSE(health.may_try("node"));
  EXPECT_TRUE(health.is_left_alone("node"));
  EXPECT_TRUE(health.may_try("another"));
  health.note_success("node");
  EXPECT_FALSE(health.has_failed("node"));
  EXPECT_TRUE(health.may_try("node"));
}

}  // namespace
}  // namespace modcache::backends
