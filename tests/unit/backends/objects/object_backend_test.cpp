// SPDX-License-Identifier: Apache-2.0
//
// Two users of one server stand for two processes: what a process knows of an address is kept by
// user and address, and the server here lets everybody in.
#include "backends/objects/object_backend.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backends/objects/layout.h"
#include "base/clock.h"
#include "base/hash.h"
#include "support/captured_log.h"
#include "support/tiny_http_server.h"

namespace modcache::backends {
namespace {

using remote::Backend;
using remote::NamedValue;
using testing::CapturedLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::TinyHttpServer;
using testing::TinyRequest;
using testing::TinyResponse;

// A server that answers is waited for as long as a busy machine may need.
constexpr std::int64_t kAmpleTimeoutMs = 5'000;

class ObjectBackendTest : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> backend_of(const std::string& user,
                                      std::int64_t timeout_ms = kAmpleTimeoutMs) {
    remote::BackendOptions options;
    options.address.engine = remote::Engine::kHttp;
    options.address.user = user;
    options.address.hosts.push_back({"127.0.0.1", server_.port()});
    options.address.path = "/cache";
    options.timeout_ms = timeout_ms;
    auto made = make_object_backend(options);
    EXPECT_TRUE(made.is_ok());
    return std::move(made).value();
  }
  static Status put(Backend& backend, const std::vector<NamedValue>& values) {
    std::vector<bool> are_stored;
    const Status status = backend.put_all(values, 0, are_stored);
    EXPECT_EQ(are_stored, std::vector<bool>(values.size(), status.is_ok()));
    return status;
  }
  static std::vector<std::string> get(Backend& backend, const std::vector<std::string>& names) {
    std::vector<SharedBytes> values;
    const Status status = backend.get_all(names, values);
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::vector<std::string> texts;
    for (const SharedBytes& value : values) {
      texts.emplace_back(value.owner == nullptr ? "-" : value.view());
    }
    return texts;
  }
  // As soon as the backend looks for news of names that it does not know. It looks after a second,
  // and after five for names that it knows.
  static std::string get_at_last(Backend& backend, const std::string& name) {
    std::string got = "-";
    const std::int64_t until_ms = steady_now_ms() + 4'500;
    while (got == "-" && steady_now_ms() < until_ms) got = get(backend, {name}).front();
    return got;
  }
  void refuse(const std::string& method, int code) {
    server_.answer_with([=](const TinyRequest& request, TinyResponse& response) {
      response.code = code;
      return request.method == method;
    });
  }
  std::size_t count_of(const std::string& beginning) {
    const auto requests = server_.requests();
    return static_cast<std::size_t>(std::count_if(
        requests.begin(), requests.end(),
        [&](const std::string& request) { return request.rfind(beginning, 0) == 0; }));
  }
  std::vector<ListedWriter> listed() {
    return decode_writers(server_.objects().at("/cache/writers")).value();
  }

  TinyHttpServer server_;
  std::unique_ptr<Backend> mine_ = backend_of("me");
  std::unique_ptr<Backend> theirs_ = backend_of("them");
};

TEST_F(ObjectBackendTest, what_one_process_writes_another_one_reads) {
  EXPECT_TRUE(put(*mine_, {{"a", "1"}, {"b", std::string(300'000, 'b')}}).is_ok());
  EXPECT_THAT(get(*theirs_, {"a", "b", "c"}), ElementsAre("1", std::string(300'000, 'b'), "-"));
  EXPECT_TRUE(put(*mine_, {{"c", "3"}}).is_ok());
  EXPECT_EQ(get_at_last(*theirs_, "c"), "3");
}

TEST_F(ObjectBackendTest, small_values_of_one_call_are_three_objects_and_one_request_to_read) {
  std::vector<NamedValue> values;
  std::vector<std::string> names;
  for (int i = 0; i < 256; ++i) {
    names.push_back("v" + std::to_string(i));
    values.push_back({names.back(), std::string(2048, 'v')});
  }
  EXPECT_TRUE(put(*mine_, {{"first", "x"}}).is_ok());
  server_.forget_requests();
  EXPECT_TRUE(put(*mine_, values).is_ok());
  EXPECT_THAT(server_.requests(), SizeIs(3));  // pack, segment, head
  get(*mine_, {"v0"});
  server_.forget_requests();
  get(*mine_, names);
  EXPECT_THAT(server_.requests(), SizeIs(1));
}

TEST_F(ObjectBackendTest, the_latest_of_two_processes_counts) {
  EXPECT_TRUE(put(*mine_, {{"a", "mine"}}).is_ok());
  EXPECT_EQ(get(*theirs_, {"a"}).front(), "mine");
  EXPECT_TRUE(put(*theirs_, {{"a", "theirs"}}).is_ok());
  EXPECT_EQ(get(*backend_of("third"), {"a"}).front(), "theirs");
  EXPECT_TRUE(theirs_->remove_all({"a"}).is_ok());
  EXPECT_EQ(get(*backend_of("fourth"), {"a"}).front(), "-");
}

TEST_F(ObjectBackendTest, a_removal_covers_what_another_process_just_wrote) {
  EXPECT_EQ(get(*theirs_, {"a"}).front(), "-");
  EXPECT_TRUE(put(*mine_, {{"a", "mine"}}).is_ok());
  EXPECT_TRUE(theirs_->remove_all({"a"}).is_ok());
  EXPECT_EQ(get(*backend_of("third"), {"a"}).front(), "-");
}

TEST_F(ObjectBackendTest, a_server_that_lets_nobody_write_is_foreign_and_can_be_read) {
  EXPECT_TRUE(put(*mine_, {{"a", "1"}}).is_ok());
  for (const int code : {403, 401, 405, 501}) {
    refuse("PUT", code);
    EXPECT_EQ(put(*mine_, {{"b", "2"}}).code(), StatusCode::kForeign) << code;
    EXPECT_EQ(put(*mine_, {{"x/ctl/b", "2"}}).code(), StatusCode::kForeign) << code;
    EXPECT_EQ(mine_->put_if_absent({"c", "3"}, 0).status().code(), StatusCode::kForeign) << code;
    EXPECT_THAT(get(*mine_, {"a", "b"}), ElementsAre("1", "-"));
  }
}

TEST_F(ObjectBackendTest, a_server_whose_writes_fail_is_full_while_it_can_be_read) {
  refuse("PUT", 500);
  EXPECT_EQ(put(*mine_, {{"a", "1"}}).code(), StatusCode::kNoSpace);
  server_.answer_with([](const TinyRequest&, TinyResponse& response) {
    response.code = 500;
    return true;
  });
  EXPECT_EQ(put(*mine_, {{"a", "1"}}).code(), StatusCode::kIoError);
}

TEST_F(ObjectBackendTest, refused_credentials_are_a_wrong_argument) {
  server_.answer_with([](const TinyRequest&, TinyResponse& response) {
    response.code = 401;
    return true;
  });
  EXPECT_EQ(put(*mine_, {{"a", "1"}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mine_->ping().code(), StatusCode::kInvalidArgument);
  std::vector<SharedBytes> values;
  EXPECT_EQ(mine_->get_all({"a"}, values).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(values, SizeIs(1));
}

TEST_F(ObjectBackendTest, what_does_not_fit_is_said_for_each_value) {
  server_.answer_with([](const TinyRequest& request, TinyResponse& response) {
    response.code = 507;
    return request.method == "PUT" && request.path.find("/v/") != std::string::npos;
  });
  std::vector<bool> are_stored;
  const Status status =
      mine_->put_all({{"a", "1"}, {"large", std::string(300'000, 'x')}, {"b", "2"}}, 0, are_stored);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_EQ(are_stored, (std::vector<bool>{true, false, true}));
  EXPECT_THAT(get(*theirs_, {"a", "large", "b"}), ElementsAre("1", "-", "2"));
}

TEST_F(ObjectBackendTest, a_name_that_is_too_long_concerns_its_own_value) {
  std::vector<bool> are_stored;
  const Status status =
      mine_->put_all({{std::string(kMostNameBytes + 1, 'n'), "1"}, {"b", "2"}}, 0, are_stored);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(are_stored, (std::vector<bool>{false, true}));
}

TEST_F(ObjectBackendTest, values_are_removed_also_where_the_server_deletes_nothing) {
  refuse("DELETE", 405);
  const std::string large(300'000, 'x');
  EXPECT_TRUE(put(*mine_, {{"a", "1"}, {"large", large}, {"x/ctl/y", "1"}}).is_ok());
  EXPECT_TRUE(mine_->remove_all({"a", "large", "x/ctl/y"}).is_ok());
  EXPECT_THAT(get(*theirs_, {"a", "large", "x/ctl/y"}), ElementsAre("-", "-", "-"));
  for (const char* const name : {"large", "x/ctl/y"}) {
    EXPECT_TRUE(mine_->put_if_absent({name, "2"}, 0).value()) << name;
    EXPECT_EQ(get(*mine_, {name}).front(), "2");
  }
}

TEST_F(ObjectBackendTest, a_server_that_ignores_ranges_is_asked_once_for_each_pack) {
  std::vector<NamedValue> values;
  for (int i = 0; i < 100; ++i) {
    values.push_back(
        {"v" + std::to_string(i), std::string(20'000, static_cast<char>('a' + i % 26))});
  }
  EXPECT_TRUE(put(*mine_, values).is_ok());
  const std::vector<std::string> far_apart = {"v1", "v50", "v98"};
  const std::vector<std::string> expected = {values[1].value, values[50].value, values[98].value};
  get(*mine_, {"v0"});
  server_.forget_requests();
  EXPECT_EQ(get(*mine_, far_apart), expected);
  EXPECT_EQ(count_of("GET /cache/p/"), 3u);
  const auto objects = server_.objects();
  server_.answer_with([objects](const TinyRequest& request, TinyResponse& response) {
    if (request.path.find("/p/") == std::string::npos) return false;
    response.body = objects.at(request.path);
    return true;
  });
  EXPECT_EQ(get(*mine_, far_apart), expected);
  server_.forget_requests();
  EXPECT_EQ(get(*mine_, far_apart), expected);
  EXPECT_EQ(count_of("GET /cache/p/"), 1u);
}

TEST_F(ObjectBackendTest, damaged_index_objects_are_left_out_with_one_line) {
  EXPECT_TRUE(put(*mine_, {{"a", "1"}}).is_ok());
  for (const char* const part : {"/writers", "/head", "/1-1"}) {
    const CapturedLog log;
    const auto objects = server_.objects();
    for (const auto& [path, bytes] : objects) {
      if (path.find(part) == std::string::npos) continue;
      std::string damaged = bytes;
      damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 1);
      server_.set_object(path, damaged);
    }
    const auto reader = backend_of(std::string("reader of ") + part);
    EXPECT_EQ(get(*reader, {"a"}).front(), "-") << part;
    EXPECT_EQ(get(*reader, {"a"}).front(), "-") << part;
    EXPECT_THAT(log.about("damaged"), SizeIs(1)) << part;
    for (const auto& [path, bytes] : objects) server_.set_object(path, bytes);
  }
  EXPECT_EQ(get(*theirs_, {"a"}).front(), "1");
}

TEST_F(ObjectBackendTest, a_value_whose_pack_is_gone_is_a_miss_that_costs_nothing_further) {
  EXPECT_TRUE(put(*mine_, {{"a", "1"}, {"large", std::string(300'000, 'x')}}).is_ok());
  for (const auto& [path, bytes] : server_.objects()) {
    if (path.find("/p/") != std::string::npos || path.find("/v/") != std::string::npos) {
      server_.remove_object(path);
    }
  }
  EXPECT_THAT(get(*mine_, {"a", "large"}), ElementsAre("-", "-"));
  server_.forget_requests();
  EXPECT_THAT(get(*mine_, {"a", "large"}), ElementsAre("-", "-"));
  EXPECT_EQ(count_of("GET /cache/p/") + count_of("GET /cache/v/"), 0u);
  EXPECT_TRUE(put(*mine_, {{"a", "again"}}).is_ok());
  EXPECT_EQ(get(*mine_, {"a"}).front(), "again");
}

TEST_F(ObjectBackendTest, a_pack_that_is_cut_gives_what_it_has) {
  EXPECT_TRUE(put(*mine_, {{"a", "11111"}, {"b", "22222"}}).is_ok());
  for (const auto& [path, bytes] : server_.objects()) {
    if (path.find("/p/") != std::string::npos) server_.set_object(path, bytes.substr(0, 7));
  }
  const CapturedLog log;
  EXPECT_THAT(get(*mine_, {"a", "b"}), ElementsAre("11111", "-"));
  EXPECT_THAT(log.about("ends too early"), SizeIs(1));
}

TEST_F(ObjectBackendTest, many_calls_leave_few_segments_for_who_comes_later) {
  const int calls = 32 * 32 + 40;
  for (int i = 0; i < calls; ++i) {
    ASSERT_TRUE(put(*mine_, {{"v" + std::to_string(i), std::to_string(i)}}).is_ok());
  }
  server_.forget_requests();
  EXPECT_THAT(get(*theirs_, {"v0", "v700", "v" + std::to_string(calls - 1)}),
              ElementsAre("0", "700", std::to_string(calls - 1)));
  // The list, one head, segments of 1024, of 32 and of 1 call, and three packs.
  EXPECT_LE(server_.requests().size(), 2u + 1u + 1u + 8u + 3u);
  EXPECT_EQ(count_of("GET /cache/w/"), 1u + 1u + 1u + 8u);
}

TEST_F(ObjectBackendTest, a_reader_that_has_the_parts_does_not_read_what_they_are_merged_to) {
  for (int i = 0; i < 31; ++i) ASSERT_TRUE(put(*mine_, {{"v" + std::to_string(i), "x"}}).is_ok());
  EXPECT_EQ(get(*theirs_, {"v30"}).front(), "x");
  EXPECT_TRUE(put(*mine_, {{"v31", "x"}}).is_ok());
  EXPECT_EQ(count_of("PUT /cache/w/"), 31u * 2 + 2 + 2);
  EXPECT_EQ(get_at_last(*theirs_, "v31"), "x");
}

TEST_F(ObjectBackendTest, writers_that_ended_long_ago_are_taken_over) {
  const std::int64_t long_ago_us = now_us() - 3'600'000'000;
  std::vector<ListedWriter> old;
  for (int i = 0; i < 70; ++i) {
    const auto writer = backend_of("writer " + std::to_string(i));
    ASSERT_TRUE(put(*writer, {{"v" + std::to_string(i), std::to_string(i)}}).is_ok());
  }
  for (const ListedWriter& writer : listed()) old.push_back({writer.id, long_ago_us});
  ASSERT_THAT(old, SizeIs(70));
  server_.set_object("/cache/writers", encode_writers(old));
  EXPECT_TRUE(put(*mine_, {{"mine", "x"}}).is_ok());
  EXPECT_THAT(listed(), SizeIs(70 - 64 + 1));
  std::vector<std::string> names;
  std::vector<std::string> expected;
  for (int i = 0; i < 70; ++i) {
    names.push_back("v" + std::to_string(i));
    expected.push_back(std::to_string(i));
  }
  EXPECT_EQ(get(*theirs_, names), expected);
  EXPECT_EQ(get(*mine_, names), expected);
}

TEST_F(ObjectBackendTest, a_writer_that_was_lost_from_the_list_comes_back) {
  EXPECT_TRUE(put(*mine_, {{"a", "1"}}).is_ok());
  server_.set_object("/cache/writers", encode_writers({}));
  EXPECT_EQ(get(*mine_, {"b"}).front(), "-");
  EXPECT_THAT(listed(), SizeIs(1));
  EXPECT_EQ(get(*theirs_, {"a"}).front(), "1");
}

TEST_F(ObjectBackendTest, an_update_of_the_list_that_another_one_came_before_is_tried_again) {
  const auto conflicts = std::make_shared<int>(2);
  server_.answer_with([conflicts](const TinyRequest& request, TinyResponse& response) {
    const bool has_condition = request.head.find("If-None-Match: *") != std::string::npos;
    if (request.method != "PUT" || request.path != "/cache/writers" || *conflicts == 0)
      return false;
    EXPECT_TRUE(has_condition);
    --*conflicts;
    response.code = 412;
    return true;
  });
  EXPECT_TRUE(put(*mine_, {{"a", "1"}}).is_ok());
  EXPECT_EQ(*conflicts, 0);
  EXPECT_THAT(listed(), SizeIs(1));
}

TEST_F(ObjectBackendTest, a_server_without_conditions_on_puts_gets_them_without) {
  server_.answer_with([&](const TinyRequest& request, TinyResponse& response) {
    response.code = 501;
    return request.head.find("If-None-Match") != std::string::npos;
  });
  EXPECT_TRUE(put(*mine_, {{"a", "1"}}).is_ok());
  EXPECT_TRUE(mine_->put_if_absent({"b", "2"}, 0).value());
  EXPECT_FALSE(mine_->put_if_absent({"b", "3"}, 0).value());
  EXPECT_THAT(get(*theirs_, {"a", "b"}), ElementsAre("1", "2"));
}

TEST_F(ObjectBackendTest, a_list_of_a_newer_modcache_is_left_alone) {
  std::string newer = encode_writers({});
  newer[12] = 2;
  const auto sum = xxh3_64(newer.data() + 8, newer.size() - 8);
  for (int i = 0; i < 8; ++i)
    newer[static_cast<std::size_t>(i)] = static_cast<char>(sum >> (8 * i));
  server_.set_object("/cache/writers", newer);
  std::vector<SharedBytes> values;
  const Status status = mine_->get_all({"a"}, values);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a newer modcache"));
  std::vector<bool> are_stored;
  EXPECT_FALSE(mine_->put_all({{"a", "1"}}, 0, are_stored).is_ok());
  EXPECT_EQ(server_.objects().at("/cache/writers"), newer);
}

TEST_F(ObjectBackendTest, a_forked_child_writes_as_a_writer_of_its_own) {
  EXPECT_TRUE(put(*mine_, {{"a", "parent's"}}).is_ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool can_read = get(*mine_, {"a"}).front() == "parent's";
    ::_exit(can_read && put(*mine_, {{"b", "child's"}}).is_ok() ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  EXPECT_THAT(listed(), SizeIs(2));
  EXPECT_EQ(get_at_last(*mine_, "b"), "child's");
  EXPECT_TRUE(put(*mine_, {{"c", "parent's"}}).is_ok());
  EXPECT_THAT(get(*theirs_, {"a", "b", "c"}), ElementsAre("parent's", "child's", "parent's"));
}

TEST_F(ObjectBackendTest, a_call_to_a_server_that_says_nothing_ends_soon) {
  server_.answer_with([](const TinyRequest&, TinyResponse& response) {
    response.is_silent = true;
    return true;
  });
  // The calls take four time-outs in all, and seven are longer than the bound.
  const auto hurried = backend_of("hurried", 1'500);
  const std::int64_t begun_ms = steady_now_ms();
  EXPECT_EQ(put(*hurried, {{"a", "1"}, {"large", std::string(3 << 20, 'x')}}).code(),
            StatusCode::kBusy);
  std::vector<SharedBytes> values;
  EXPECT_EQ(hurried->get_all({"a", "b"}, values).code(), StatusCode::kBusy);
  EXPECT_EQ(hurried->remove_all({"a"}).code(), StatusCode::kBusy);
  EXPECT_LT(steady_now_ms() - begun_ms, 10'000);
}

}  // namespace
}  // namespace modcache::backends
