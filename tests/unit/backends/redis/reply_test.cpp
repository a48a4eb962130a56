// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/reply.h"

#include <gtest/gtest.h>
#include <valkey/read.h>
#include <valkey/valkey.h>

#include <string>
#include <vector>

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
  return status_of(reply_of("-" + text + "\r\n")).code();
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
  EXPECT_EQ(status_of(reply_of("-ERR no such thing\r\n")).message(), "it says: ERR no such thing");
}

TEST(ReplyTest, no_reply_is_a_failure_and_answers_every_question) {
  const ReplyPtr none = reply_of("rubbish");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(status_of(none).code(), StatusCode::kIoError);
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
    ASSERT_TRUE(status_of(reply).is_ok());
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
  EXPECT_EQ(names_of_element(reply, 3), (std::vector<std::string>{"x", "yz"}));
  EXPECT_TRUE(names_of_element(reply, 0).empty());
  const SharedBytes kept = bytes_of_element(reply_of("*1\r\n$3\r\nabc\r\n"), 0);
  EXPECT_EQ(kept.view(), "abc") << "the element keeps the whole reply";
}

}  // namespace
}  // namespace modcache::backends
