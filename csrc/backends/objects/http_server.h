// SPDX-License-Identifier: Apache-2.0
//
// HttpServer: where the objects of one address lie, and how one is let in there. The words for what
// such a server refuses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/status.h"
#include "remote/engine_library.h"

namespace modcache::backends {

struct HttpRequest;
struct HttpAnswer;

struct HttpServer {
  std::string url;  // without credentials, escaped, without a `/` at its end
  std::string user;
  std::string password;
  // For S3: what curl signs for ("aws:amz:us-east-1:s3"), and the token of passing credentials.
  std::string signs_for;
  std::string session_token;
  bool is_s3 = false;
  std::string ca;
  std::string cert;
  std::string key;
  bool verifies = true;
  std::int64_t timeout_ms = 500;
};

// The environment gives what the address lacks: AWS_REGION (or AWS_DEFAULT_REGION),
// AWS_ENDPOINT_URL, AWS_SESSION_TOKEN.
Result<HttpServer> http_server_of(const remote::BackendOptions& options);

// Bytes other than letters, digits and "-._~/" as %XX.
std::string escaped_path(std::string_view path);

// Says what an answer that is no success means: the codes that remote/backend.h names. The message
// has the server's own word in short, and no credentials.
Status failure_of(const HttpRequest& request, const HttpAnswer& answer, const HttpServer& server);

}  // namespace modcache::backends
