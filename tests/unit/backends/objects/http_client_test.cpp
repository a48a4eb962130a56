// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/http_client.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "support/tiny_http_server.h"

namespace modcache::backends {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TinyHttpServer;
using testing::TinyRequest;
using testing::TinyResponse;

// A server that answers is waited for as long as a busy machine may need. Tests of servers that do
// not answer have clients of their own.
constexpr std::int64_t kPatientMs = 5'000;
constexpr std::int64_t kHurriedMs = 200;

class HttpClientTest : public ::testing::Test {
 protected:
  static HttpServer server_at(std::uint16_t port, std::int64_t timeout_ms = kPatientMs) {
    HttpServer server;
    server.url = "http://127.0.0.1:" + std::to_string(port) + "/base";
    server.timeout_ms = timeout_ms;
    return server;
  }
  static HttpRequest get(const std::string& path, std::uint64_t most_bytes = 1 << 20) {
    HttpRequest request;
    request.path = path;
    request.most_bytes = most_bytes;
    return request;
  }
  static HttpRequest part(const std::string& path, std::uint64_t offset, std::uint64_t size) {
    HttpRequest request = get(path);
    request.range_offset = offset;
    request.range_size = size;
    return request;
  }
  static HttpRequest put(const std::string& path, const std::string& body) {
    HttpRequest request;
    request.method = HttpMethod::kPut;
    request.path = path;
    request.body = body;
    return request;
  }
  void answer_all_with(const TinyResponse& response) {
    server_.answer_with([response](const TinyRequest&, TinyResponse& given) {
      given = response;
      return true;
    });
  }
  static Status failure(HttpClient& client, const HttpRequest& request) {
    return failure_of(request, client.perform(request), client.server());
  }
  Status failure(const HttpRequest& request) { return failure(client_, request); }
  Status failure_of_code(int code, HttpMethod method = HttpMethod::kGet) {
    TinyResponse response;
    response.code = code;
    answer_all_with(response);
    HttpRequest request = get("/x");
    request.method = method;
    return failure(request);
  }

  TinyHttpServer server_;
  HttpClient client_{server_at(server_.port())};
};

TEST_F(HttpClientTest, puts_gets_and_deletes) {
  const std::string body(3 << 20, 'x');
  EXPECT_EQ(client_.perform(put("/x", body)).code, 201);
  EXPECT_TRUE(server_.objects().at("/base/x") == body);
  EXPECT_TRUE(client_.perform(get("/x", 4 << 20)).body == body);
  HttpRequest request = get("/x");
  request.method = HttpMethod::kHead;
  EXPECT_EQ(client_.perform(request).code, 200);
  request.method = HttpMethod::kDelete;
  EXPECT_EQ(client_.perform(request).code, 204);
  EXPECT_TRUE(client_.perform(get("/x")).is_not_there());
  EXPECT_EQ(client_.perform(put("/empty", "")).code, 201);
  EXPECT_EQ(server_.objects().at("/base/empty"), "");
}

TEST_F(HttpClientTest, many_requests_are_answered_in_order) {
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 200; ++i) {
    server_.set_object("/base/" + std::to_string(i), std::to_string(i));
    requests.push_back(get("/" + std::to_string(i)));
  }
  const auto answers = client_.perform(requests);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(answers[static_cast<std::size_t>(i)].body, std::to_string(i));
  }
}

TEST_F(HttpClientTest, a_part_is_the_part_also_where_the_server_sends_everything) {
  server_.set_object("/base/x", "0123456789");
  HttpAnswer answer = client_.perform(part("/x", 3, 4));
  EXPECT_EQ(answer.body, "3456");
  EXPECT_FALSE(answer.ignored_range);
  TinyResponse everything;
  everything.body = "0123456789";
  answer_all_with(everything);
  for (const auto& [offset, size, expected] :
       {std::tuple(3, 4, "3456"), std::tuple(0, 10, "0123456789"), std::tuple(8, 5, "89"),
        std::tuple(20, 5, "")}) {
    answer = client_.perform(
        part("/x", static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(size)));
    EXPECT_TRUE(answer.is_success()) << answer.transport.message();
    EXPECT_EQ(answer.body, expected);
    EXPECT_TRUE(answer.ignored_range);
  }
}

TEST_F(HttpClientTest, an_answer_that_is_too_long_is_refused) {
  server_.set_object("/base/x", std::string(2'000, 'x'));
  EXPECT_EQ(failure(get("/x", 1'999)).code(), StatusCode::kCorruption);
  EXPECT_TRUE(client_.perform(get("/x", 2'000)).is_success());
  TinyResponse longer;
  longer.code = 206;
  longer.body = "too long a part";
  answer_all_with(longer);
  EXPECT_EQ(failure(part("/x", 0, 3)).code(), StatusCode::kCorruption);
}

TEST_F(HttpClientTest, of_a_failure_only_the_beginning_is_kept) {
  TinyResponse response;
  response.code = 500;
  response.body = std::string(10 << 20, 'x');
  answer_all_with(response);
  const HttpAnswer answer = client_.perform(get("/x"));
  EXPECT_EQ(answer.code, 500);
  EXPECT_LE(answer.body.size(), 4096u);
}

TEST_F(HttpClientTest, codes_have_a_meaning) {
  EXPECT_EQ(failure_of_code(401).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure_of_code(403).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure_of_code(413, HttpMethod::kPut).code(), StatusCode::kNoSpace);
  EXPECT_EQ(failure_of_code(507, HttpMethod::kPut).code(), StatusCode::kNoSpace);
  EXPECT_EQ(failure_of_code(405, HttpMethod::kPut).code(), StatusCode::kForeign);
  EXPECT_EQ(failure_of_code(501, HttpMethod::kPut).code(), StatusCode::kForeign);
  EXPECT_EQ(failure_of_code(503).code(), StatusCode::kBusy);
  EXPECT_EQ(failure_of_code(429).code(), StatusCode::kBusy);
  EXPECT_EQ(failure_of_code(500).code(), StatusCode::kIoError);
}

TEST_F(HttpClientTest, a_redirect_is_not_followed) {
  TinyResponse response;
  response.code = 302;
  response.headers = "Location: http://127.0.0.1:1/elsewhere\r\n";
  answer_all_with(response);
  const Status status = failure(get("/x"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("http://127.0.0.1:1/elsewhere"));
  EXPECT_EQ(server_.requests().size(), 1u);
}

TEST_F(HttpClientTest, a_message_has_the_word_of_the_server_and_no_credentials) {
  HttpServer with_credentials = server_at(server_.port());
  with_credentials.user = "somebody";
  with_credentials.password = "s3cret";
  HttpClient client(with_credentials);
  std::string seen;
  server_.answer_with([&seen](const TinyRequest& request, TinyResponse& response) {
    seen = request.head;
    response.code = 403;
    response.body = "<Error><Code>AccessDenied</Code><Message>not s3cret\x1b[31m of somebody" +
                    std::string(1'000, '!') + "</Message><Echo>s3cret</Echo></Error>";
    return true;
  });
  const HttpRequest request = get("/x");
  const Status status = failure(client, request);
  EXPECT_THAT(status.message(), HasSubstr("403 AccessDenied: not ***?[31m of ***!!!"));
  EXPECT_THAT(status.message(), Not(HasSubstr("s3cret")));
  EXPECT_THAT(status.message(), Not(HasSubstr("somebody")));
  EXPECT_LT(status.message().size(), 500u);
  EXPECT_THAT(seen, HasSubstr("Authorization: Basic c29tZWJvZHk6czNjcmV0"));
}

// One time-out for each request of a connection would take longer than the bound.
TEST_F(HttpClientTest, a_server_that_says_nothing_costs_one_timeout_whatever_is_asked) {
  constexpr std::int64_t kMostMs = 5'000;
  constexpr std::size_t kRequests = 1'000;
  static_assert(kRequests / HttpClient::kMostConnections * kHurriedMs > 2 * kMostMs);
  HttpClient client(server_at(server_.port(), kHurriedMs));
  TinyResponse silent;
  silent.is_silent = true;
  answer_all_with(silent);
  const std::int64_t begun_ms = steady_now_ms();
  const auto answers = client.perform(std::vector<HttpRequest>(kRequests, get("/x")));
  const std::int64_t took_ms = steady_now_ms() - begun_ms;
  EXPECT_GE(took_ms, kHurriedMs);
  EXPECT_LT(took_ms, kMostMs);
  for (const HttpAnswer& answer : answers) {
    EXPECT_EQ(answer.transport.code(), StatusCode::kBusy);
  }
  EXPECT_LE(server_.requests().size(), HttpClient::kMostConnections);
}

// The whole answer would take ten seconds.
TEST_F(HttpClientTest, a_server_that_drips_is_given_up) {
  HttpClient client(server_at(server_.port(), kHurriedMs));
  TinyResponse slow;
  slow.body = std::string(1'000, 'x');
  slow.ms_between_bytes = 10;
  answer_all_with(slow);
  const std::int64_t begun_ms = steady_now_ms();
  EXPECT_EQ(failure(client, get("/x")).code(), StatusCode::kBusy);
  EXPECT_LT(steady_now_ms() - begun_ms, 5'000);
}

TEST_F(HttpClientTest, a_port_where_nobody_listens_is_a_failure_at_once) {
  constexpr std::int64_t kLongMs = 30'000;
  HttpClient client(server_at(1, kLongMs));
  const std::int64_t begun_ms = steady_now_ms();
  EXPECT_EQ(failure(client, get("/x")).code(), StatusCode::kIoError);
  EXPECT_LT(steady_now_ms() - begun_ms, kLongMs / 6);
}

// One of the answers lacks its end, which is a time-out of waiting.
TEST_F(HttpClientTest, answers_that_are_no_http_are_failures_and_the_client_goes_on) {
  HttpClient client(server_at(server_.port(), 2'000));
  for (const char* const raw :
       {"garbage", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "HTTP/1.1 99999999999 ?\r\n\r\n"}) {
    TinyResponse broken;
    broken.raw = raw;
    answer_all_with(broken);
    EXPECT_FALSE(client.perform(get("/x")).is_success()) << raw;
  }
  TinyResponse gone;
  gone.hangs_up = true;
  answer_all_with(gone);
  EXPECT_EQ(failure(client, get("/x")).code(), StatusCode::kIoError);
  server_.answer_with({});
  server_.set_object("/base/x", "x");
  EXPECT_EQ(client.perform(get("/x")).body, "x");
}

TEST_F(HttpClientTest, a_forked_child_makes_connections_of_its_own) {
  server_.set_object("/base/x", "x");
  EXPECT_EQ(client_.perform(get("/x")).body, "x");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(client_.perform(get("/x")).body == "x" ? 0 : 1);
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(client_.perform(get("/x")).body, "x");
}

}  // namespace
}  // namespace modcache::backends
