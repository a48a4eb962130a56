// SPDX-License-Identifier: Apache-2.0
//
// HttpClient: requests to one server, several at once, over connections that are kept.
//
// A request fails when nothing moves for the server's time-out, and when it moves fewer than
// kSlowestBytesPerMs on average, so that no server can hold a call for ever. Where one request
// finds that the server cannot be reached, those that have not begun fail alike, so that a call
// takes one time-out and not one for each request. Redirects are not followed: credentials would
// go along. A proxy is what the environment names (http_proxy, no_proxy), as curl has it.
//
// One thread at a time. A forked child leaves its parent's connections alone and makes its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/objects/http_server.h"
#include "base/result.h"
#include "base/status.h"

namespace modcache::backends {

enum class HttpMethod : std::uint8_t { kGet, kHead, kPut, kDelete };

struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string path;       // after the server's URL; begins with `/`, and is escaped
  std::string_view body;  // of a PUT; outlives the request
  // The part that is asked for; a size of 0 asks for everything.
  std::uint64_t range_offset = 0;
  std::uint64_t range_size = 0;
  // A longer answer is a failure. Of a part, its size is the bound.
  std::uint64_t most_bytes = 0;
  std::string condition;  // a header line, such as "If-None-Match: *"
  bool is_fresh = false;  // no cache on the way may answer
};

struct HttpAnswer {
  Status transport;  // not ok: no whole answer came, and nothing else is set
  int code = 0;
  std::string body;  // of a failure its beginning; of a part exactly the part, or less
  std::string etag;
  std::string location;
  bool ignored_range = false;  // everything was sent where a part was asked for

  bool is_success() const { return transport.is_ok() && code >= 200 && code < 300; }
  bool is_not_there() const { return transport.is_ok() && (code == 404 || code == 410); }
};

class HttpClient {
 public:
  static constexpr std::size_t kMostConnections = 16;
  static constexpr std::int64_t kSlowestBytesPerMs = 256;

  explicit HttpClient(HttpServer server);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  const HttpServer& server() const { return server_; }

  // Returns an answer for each, in order.
  std::vector<HttpAnswer> perform(const std::vector<HttpRequest>& requests);
  HttpAnswer perform(const HttpRequest& request);

 private:
  struct Connections;
  struct Transfer;
  Connections* connections();
  Status start(const HttpRequest& request, HttpAnswer& answer, Transfer& transfer);
  void set_options(Transfer& transfer);
  void end(Transfer& transfer, int curl_code);
  void end_finished(Connections& connections);
  void end_late(Connections& connections);

  HttpServer server_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace modcache::backends
