// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/http_server.h"

#include <cstdlib>

#include "backends/objects/http_client.h"

namespace modcache::backends {
namespace {

constexpr std::size_t kMostShownBytes = 200;

std::string environment_text(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string without_slash_at_end(std::string text) {
  while (!text.empty() && text.back() == '/') text.pop_back();
  return text;
}

std::string url_of_host(const remote::Address& address) {
  const remote::Host& host = address.hosts.front();
  const bool is_ipv6 = host.name.find(':') != std::string::npos;
  std::string url = address.uses_tls ? "https://" : "http://";
  url += is_ipv6 ? "[" + host.name + "]" : host.name;
  return host.port != 0 ? url + ":" + std::to_string(host.port) : url;
}

// The URL of a bucket. With an endpoint the bucket is the first part of the path, as servers other
// than Amazon's seldom have a name for each bucket; so is one with a dot, which a certificate of
// Amazon's does not cover.
Result<std::string> url_of_bucket(const remote::Address& address, const std::string& region) {
  if (address.hosts.empty() || address.hosts.front().name.empty()) {
    return Status::invalid_argument("the address names no bucket; valid is s3://bucket/prefix");
  }
  const std::string& bucket = address.hosts.front().name;
  std::string endpoint(address.parameter("endpoint"));
  if (endpoint.empty()) endpoint = environment_text("AWS_ENDPOINT_URL");
  if (endpoint.empty()) {
    const std::string amazon = "s3." + region + ".amazonaws.com";
    if (bucket.find('.') != std::string::npos) {
      return "https://" + amazon + "/" + escaped_path(bucket);
    }
    return "https://" + bucket + "." + amazon;
  }
  if (endpoint.find("://") == std::string::npos) endpoint = "https://" + endpoint;
  const bool is_http = endpoint.rfind("http://", 0) == 0 || endpoint.rfind("https://", 0) == 0;
  if (!is_http || endpoint.find('@') != std::string::npos) {
    return Status::invalid_argument(
        "the endpoint of S3 is http://host:port or https://host:port, without credentials");
  }
  return without_slash_at_end(endpoint) + "/" + escaped_path(bucket);
}

std::string environment_region(const remote::Address& address) {
  std::string region(address.parameter("region"));
  if (region.empty()) region = environment_text("AWS_REGION");
  if (region.empty()) region = environment_text("AWS_DEFAULT_REGION");
  return region.empty() ? "us-east-1" : region;
}

// The text between <tag> and </tag>.
std::string_view xml_text(std::string_view xml, const std::string& tag) {
  const std::size_t begin = xml.find("<" + tag + ">");
  if (begin == std::string_view::npos) return {};
  const std::size_t from = begin + tag.size() + 2;
  const std::size_t end = xml.find("</" + tag + ">", from);
  return end == std::string_view::npos ? std::string_view() : xml.substr(from, end - from);
}

void hide(std::string& text, const std::string& secret) {
  if (secret.empty()) return;
  for (std::size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, at)) {
    text.replace(at, secret.size(), "***");
    at += 3;
  }
}

// One line that a terminal can show. A server may repeat what it was sent.
std::string shown_text(std::string_view text, const HttpServer& server) {
  std::string shown(text);
  hide(shown, server.password);
  hide(shown, server.user);
  hide(shown, server.session_token);
  if (shown.size() > kMostShownBytes) shown = shown.substr(0, kMostShownBytes) + "...";
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

const char* method_name(HttpMethod method) {
  switch (method) {
    case HttpMethod::kGet: return "GET";
    case HttpMethod::kHead: return "HEAD";
    case HttpMethod::kPut: return "PUT";
    case HttpMethod::kDelete: return "DELETE";
  }
  return "";
}

}  // namespace

std::string escaped_path(std::string_view path) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : path) {
    if (kPlain.find(c) != std::string_view::npos) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out.push_back('%');
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

Result<HttpServer> http_server_of(const remote::BackendOptions& options) {
  const remote::Address& address = options.address;
  HttpServer server;
  server.user = address.user;
  server.password = address.password;
  server.ca = address.parameter("ca");
  server.cert = address.parameter("cert");
  server.key = address.parameter("key");
  server.verifies = address.parameter("verify") != "0";
  server.timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : 1;
  server.is_s3 = address.engine == remote::Engine::kS3;
  if (server.is_s3) {
    const std::string region = environment_region(address);
    MODCACHE_ASSIGN_OR_RETURN(server.url, url_of_bucket(address, region));
    server.signs_for = "aws:amz:" + region + ":s3";
    server.session_token = environment_text("AWS_SESSION_TOKEN");
  } else {
    if (address.engine != remote::Engine::kHttp || address.hosts.size() != 1) {
      return Status::invalid_argument(
          "the address names no single host; valid is http://host/path");
    }
    server.url = url_of_host(address);
  }
  server.url += without_slash_at_end(escaped_path(address.path));
  return server;
}

Status failure_of(const HttpRequest& request, const HttpAnswer& answer, const HttpServer& server) {
  if (!answer.transport.is_ok()) return answer.transport;
  std::string message = server.url + " answers " + method_name(request.method) + " with " +
                        std::to_string(answer.code);
  const std::string_view word = xml_text(answer.body, "Code");
  if (!word.empty()) message += " " + shown_text(word, server);
  const std::string_view text = xml_text(answer.body, "Message");
  if (!text.empty()) message += ": " + shown_text(text, server);
  const int code = answer.code;
  if (code >= 300 && code < 400) {
    return Status::invalid_argument(
        message + ", a redirect, which is not followed" +
        (answer.location.empty() ? "" : "; it names " + shown_text(answer.location, server)));
  }
  const bool refuses_method = code == 405 || code == 501;
  if (request.method == HttpMethod::kPut && refuses_method) return Status::foreign(message);
  if (code == 413 || code == 507) return Status::no_space(message);
  if (code == 408 || code == 429 || code == 503 || code == 504) return Status::busy(message);
  // S3 says 400 where the region or the credentials' form is wrong.
  const bool is_refusal = code == 401 || code == 403 || (server.is_s3 && code == 400);
  const bool has_no_bucket = server.is_s3 && word == "NoSuchBucket";
  if (is_refusal || has_no_bucket) return Status::invalid_argument(message);
  return Status::io_error(message);
}

}  // namespace modcache::backends
