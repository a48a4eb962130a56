// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/http_client.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/process_wide.h"
#include "remote/reset_connection.h"

namespace modcache::backends {
namespace {

constexpr std::size_t kMostFailureBytes = 4096;
constexpr std::size_t kMostHeaderBytes = 512;
constexpr int kLongestPollMs = 20;

struct CurlLibrary : ProcessWide<CurlLibrary> {
  CurlLibrary() { curl_global_init(CURL_GLOBAL_DEFAULT); }
};

// OpenSSL writes to sockets that the other side has closed, which would end a process that does not
// ignore SIGPIPE. The disposition is the host's own affair, so the signal is held back in this
// thread.
class PipeSignalsHeldBack {
 public:
  PipeSignalsHeldBack() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalsHeldBack() {
    const timespec at_once{0, 0};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalsHeldBack(const PipeSignalsHeldBack&) = delete;
  PipeSignalsHeldBack& operator=(const PipeSignalsHeldBack&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

bool begins_with_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  for (std::size_t i = 0; i < lower.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != lower[i]) return false;
  }
  return true;
}

std::string header_value(std::string_view line, std::size_t name_size) {
  line.remove_prefix(name_size);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  return std::string(line.substr(0, kMostHeaderBytes));
}

// S3 wants this header, which curl sends by itself only in later versions, and has it signed.
// Where TLS guards the body nobody needs a hash of it.
std::string payload_header(const HttpServer& server, const HttpRequest& request) {
  const bool is_guarded = server.url.rfind("https:", 0) == 0 && !request.body.empty();
  return "x-amz-content-sha256: " +
         (is_guarded ? std::string("UNSIGNED-PAYLOAD") : sha256_hex(request.body));
}

Status transport_failure(CURLcode code, const char* detail, const std::string& url) {
  const std::string why = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  const std::string message = url + ": " + why;
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT: return Status::busy(url + " did not answer in time: " + why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT: return Status::invalid_argument(message);
    default: return Status::io_error(message);
  }
}

// A request that was given up must not reach the server after a newer one.
int close_at_once(void*, curl_socket_t socket) {
  remote::reset_connection(socket);
  return ::close(socket);
}

}  // namespace

// One request under way, and the handle for it, which is used again for later ones.
struct HttpClient::Transfer {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  const HttpRequest* request = nullptr;  // null: none is under way
  HttpAnswer* answer = nullptr;
  std::string url;
  std::array<char, CURL_ERROR_SIZE> error{};
  std::uint64_t skipped_bytes = 0;
  std::uint64_t failure_bytes = 0;
  bool is_too_long = false;
  bool has_enough = false;
  std::int64_t begun_ms = 0;
  std::int64_t moved_ms = 0;  // when something moved last
  std::int64_t moved_bytes = 0;

  // Returns how many bytes were used; fewer end the transfer.
  std::size_t take(const char* data, std::size_t size);
  std::size_t take_part_of_all(const char* data, std::size_t size);
  bool is_late(std::int64_t now_ms, std::int64_t timeout_ms);

  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* transfer) {
    return static_cast<Transfer*>(transfer)->take(data, size);
  }
  static std::size_t on_header(char* data, std::size_t, std::size_t size, void* transfer) {
    HttpAnswer& answer = *static_cast<Transfer*>(transfer)->answer;
    const std::string_view line(data, size);
    if (begins_with_ignoring_case(line, "etag:")) answer.etag = header_value(line, 5);
    if (begins_with_ignoring_case(line, "location:")) answer.location = header_value(line, 9);
    return size;
  }
};

std::size_t HttpClient::Transfer::take(const char* data, std::size_t size) {
  long code = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
  std::string& body = answer->body;
  if (code < 200 || code >= 300) {
    body.append(data, std::min(size, kMostFailureBytes - std::min(kMostFailureBytes, body.size())));
    failure_bytes += size;
    has_enough = failure_bytes > 16 * kMostFailureBytes;
    return has_enough ? 0 : size;
  }
  const bool is_part = request->range_size != 0;
  if (is_part && code != 206) return take_part_of_all(data, size);
  if (body.size() + size > (is_part ? request->range_size : request->most_bytes)) {
    is_too_long = true;
    return 0;
  }
  body.append(data, size);
  return size;
}

std::size_t HttpClient::Transfer::take_part_of_all(const char* data, std::size_t size) {
  answer->ignored_range = true;
  const auto skip = static_cast<std::size_t>(
      std::min<std::uint64_t>(size, request->range_offset - skipped_bytes));
  skipped_bytes += skip;
  const std::uint64_t wanted = request->range_size - answer->body.size();
  answer->body.append(data + skip,
                      static_cast<std::size_t>(std::min<std::uint64_t>(wanted, size - skip)));
  has_enough = answer->body.size() == request->range_size;
  return has_enough ? 0 : size;
}

bool HttpClient::Transfer::is_late(std::int64_t now_ms, std::int64_t timeout_ms) {
  curl_off_t sent = 0;
  curl_off_t received = 0;
  curl_easy_getinfo(easy, CURLINFO_SIZE_UPLOAD_T, &sent);
  curl_easy_getinfo(easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
  if (sent + received != moved_bytes) {
    moved_bytes = sent + received;
    moved_ms = now_ms;
  }
  const std::int64_t allowed_ms = 2 * timeout_ms + moved_bytes / kSlowestBytesPerMs;
  return now_ms - moved_ms >= timeout_ms || now_ms - begun_ms >= allowed_ms;
}

// A forked child starts with another one.
struct HttpClient::Connections {
  std::uint64_t fork_generation = modcache::fork_generation();
  CURLM* multi = curl_multi_init();
  std::array<Transfer, kMostConnections> transfers;
  std::size_t active = 0;
  Status lost;  // not ok: the server could not be reached, and nothing else is begun

  Connections() {
    if (multi == nullptr) return;
    curl_multi_setopt(multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, static_cast<long>(kMostConnections));
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, static_cast<long>(kMostConnections));
    for (Transfer& transfer : transfers) transfer.easy = curl_easy_init();
  }
  ~Connections() {
    for (Transfer& transfer : transfers) {
      if (transfer.easy != nullptr) curl_easy_cleanup(transfer.easy);
    }
    if (multi != nullptr) curl_multi_cleanup(multi);
  }
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  bool is_whole() const {
    return multi != nullptr && std::all_of(transfers.begin(), transfers.end(),
                                           [](const Transfer& t) { return t.easy != nullptr; });
  }
  Transfer* find_idle() {
    for (Transfer& transfer : transfers) {
      if (transfer.request == nullptr) return &transfer;
    }
    return nullptr;
  }
};

HttpClient::HttpClient(HttpServer server) : server_(std::move(server)) {}

HttpClient::~HttpClient() {
  const PipeSignalsHeldBack held;  // TLS says goodbye
  if (connections_ == nullptr || connections_->fork_generation == fork_generation()) {
    connections_.reset();
    return;
  }
  // Closing them would say goodbye on the parent's connections.
  [[maybe_unused]] const Connections* const leaked = connections_.release();
}

HttpClient::Connections* HttpClient::connections() {
  CurlLibrary::instance();
  if (connections_ != nullptr && connections_->fork_generation != fork_generation()) {
    [[maybe_unused]] const Connections* const leaked = connections_.release();
  }
  if (connections_ == nullptr) connections_ = std::make_unique<Connections>();
  return connections_->is_whole() ? connections_.get() : nullptr;
}

void HttpClient::set_options(Transfer& transfer) {
  const HttpRequest& request = *transfer.request;
  CURL* const easy = transfer.easy;
  const auto add = [&](const std::string& line) {
    transfer.headers = curl_slist_append(transfer.headers, line.c_str());
  };
  if (request.is_fresh) add("Cache-Control: no-cache");
  if (!request.condition.empty()) add(request.condition);
  if (!server_.session_token.empty()) add("x-amz-security-token: " + server_.session_token);
  switch (request.method) {
    case HttpMethod::kGet: curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L); break;
    case HttpMethod::kHead: curl_easy_setopt(easy, CURLOPT_NOBODY, 1L); break;
    case HttpMethod::kDelete: curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE"); break;
    case HttpMethod::kPut:
      // As the fields of a POST, which curl can send again without being asked for them.
      add("Content-Type: application/octet-stream");
      curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "PUT");
      break;
  }
  if (request.range_size != 0) {
    const std::string range = std::to_string(request.range_offset) + "-" +
                              std::to_string(request.range_offset + request.range_size - 1);
    curl_easy_setopt(easy, CURLOPT_RANGE, range.c_str());
  }
  if (!server_.user.empty() || !server_.password.empty()) {
    curl_easy_setopt(easy, CURLOPT_USERNAME, server_.user.c_str());
    curl_easy_setopt(easy, CURLOPT_PASSWORD, server_.password.c_str());
    if (server_.is_s3) {
      add(payload_header(server_, request));
      curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, server_.signs_for.c_str());
    } else {
      curl_easy_setopt(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    }
  }
  if (!server_.ca.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, server_.ca.c_str());
  if (!server_.cert.empty()) curl_easy_setopt(easy, CURLOPT_SSLCERT, server_.cert.c_str());
  if (!server_.key.empty()) curl_easy_setopt(easy, CURLOPT_SSLKEY, server_.key.c_str());
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, server_.verifies ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, server_.verifies ? 2L : 0L);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers);
}

Status HttpClient::start(const HttpRequest& request, HttpAnswer& answer, Transfer& transfer) {
  transfer.request = &request;
  transfer.answer = &answer;
  transfer.url = server_.url + request.path;
  transfer.error[0] = '\0';
  transfer.skipped_bytes = 0;
  transfer.failure_bytes = 0;
  transfer.is_too_long = false;
  transfer.has_enough = false;
  transfer.begun_ms = steady_now_ms();
  transfer.moved_ms = transfer.begun_ms;
  transfer.moved_bytes = 0;
  CURL* const easy = transfer.easy;
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_URL, transfer.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.error.data());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(server_.timeout_ms));
  // A server that does not know `Expect` costs no more than this.
  curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS,
                   static_cast<long>(std::min<std::int64_t>(200, server_.timeout_ms / 4 + 1)));
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L * 1024);
  curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 256L * 1024);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, &close_at_once);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  set_options(transfer);
  if (curl_multi_add_handle(connections_->multi, easy) == CURLM_OK) {
    ++connections_->active;
    return Status::ok();
  }
  transfer.request = nullptr;
  curl_slist_free_all(std::exchange(transfer.headers, nullptr));
  return Status::io_error(server_.url + ": curl takes no request");
}

void HttpClient::end(Transfer& transfer, int curl_code) {
  HttpAnswer& answer = *transfer.answer;
  const auto code = static_cast<CURLcode>(curl_code);
  long response = 0;
  curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &response);
  answer.code = static_cast<int>(response);
  if (transfer.is_too_long) {
    answer.transport = Status::corruption(server_.url + " sends more than was stored");
  } else if (code != CURLE_OK && !transfer.has_enough) {
    answer.transport = transport_failure(code, transfer.error.data(), server_.url);
    if (connections_->lost.is_ok()) connections_->lost = answer.transport;
  }
  curl_multi_remove_handle(connections_->multi, transfer.easy);
  curl_slist_free_all(std::exchange(transfer.headers, nullptr));
  transfer.request = nullptr;
  --connections_->active;
}

void HttpClient::end_finished(Connections& connections) {
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(connections.multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    char* owner = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &owner);
    end(*reinterpret_cast<Transfer*>(owner), message->data.result);
  }
}

void HttpClient::end_late(Connections& connections) {
  const std::int64_t now_ms = steady_now_ms();
  for (Transfer& transfer : connections.transfers) {
    if (transfer.request == nullptr || !transfer.is_late(now_ms, server_.timeout_ms)) continue;
    end(transfer, CURLE_OPERATION_TIMEDOUT);
  }
}

std::vector<HttpAnswer> HttpClient::perform(const std::vector<HttpRequest>& requests) {
  std::vector<HttpAnswer> answers(requests.size());
  const PipeSignalsHeldBack held;
  Connections* const connections = this->connections();
  Status lost = Status::ok();
  if (connections == nullptr) lost = Status::io_error(server_.url + ": curl cannot be had");
  std::size_t begun = 0;
  if (connections != nullptr) connections->lost = Status::ok();
  while (lost.is_ok()) {
    for (; begun < requests.size() && connections->lost.is_ok(); ++begun) {
      Transfer* const idle = connections->find_idle();
      if (idle == nullptr) break;
      answers[begun].transport = start(requests[begun], answers[begun], *idle);
    }
    int running = 0;
    curl_multi_perform(connections->multi, &running);
    end_finished(*connections);
    end_late(*connections);
    lost = connections->active == 0 ? connections->lost : Status::ok();
    if (connections->active == 0) {
      if (begun == requests.size()) break;
      continue;
    }
    curl_multi_poll(connections->multi, nullptr, 0, kLongestPollMs, nullptr);
  }
  for (; begun < requests.size(); ++begun) answers[begun].transport = lost;
  return answers;
}

HttpAnswer HttpClient::perform(const HttpRequest& request) {
  return std::move(perform(std::vector<HttpRequest>{request}).front());
}

}  // namespace modcache::backends
