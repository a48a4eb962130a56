// SPDX-License-Identifier: Apache-2.0
#include "routes.h"

#include <ATen/Parallel.h>
#include <modcache/cache.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "errors.h"
#include "output_json.h"
#include "status_page.h"

namespace server {
namespace {

using httplib::Request;
using httplib::Response;
using Json = nlohmann::json;

constexpr const char* kJson = "application/json";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kSaltHeader = "X-Cache-Salt";
constexpr std::size_t kMaxErrorBytes = 1000;
constexpr const char* kPaths[] = {"/predict", "/metrics", "/cache/mode",
                                  "/healthz", "/status",  "/"};
const std::string kValidRequests =
    "valid are POST /predict, GET /metrics, GET /cache/mode, PUT /cache/mode, GET /healthz, "
    "GET /status, GET /";

void set_json(Response& response, const Json& json) {
  response.set_content(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", kJson);
}

void set_error(Response& response, int status, const std::string& message) {
  response.status = status;
  set_json(response, {{"error", message.substr(0, kMaxErrorBytes)}});
}

void set_exception(Response& response, const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const HttpError& error) {
    set_error(response, error.status, error.what());
  } catch (const std::exception& error) {
    set_error(response, 500, message_of(error));
  }
}

// Explains an error response of cpp-httplib, which has no body.
void explain_error(const Request& request, Response& response) {
  if (!response.body.empty()) return;
  const int status = response.status;
  const std::string given = request.method + " " + request.path.substr(0, 200);
  if (status == 404) {
    set_error(response, status, "there is no " + given + "; " + kValidRequests);
  } else if (status == 413) {
    set_error(response, status, "the body is too long; --max-body-bytes sets the limit");
  } else {
    set_error(response, status, "the request is not valid HTTP, or it did not arrive in time");
  }
}

// A page of another site may send a PUT, or a body of this type, only if the server allows it in
// response to a preflight request, which this server does not. So no such page can set the mode.
void require_json(const Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  if (type.starts_with(kJson)) return;
  throw HttpError(415, "the Content-Type is '" + type.substr(0, 100) + "'; valid is " + kJson);
}

bool bypasses_cache(const Request& request) {
  const std::string directives = request.get_header_value("Cache-Control");
  return directives.find("no-cache") != std::string::npos ||
         directives.find("no-store") != std::string::npos;
}

void predict(Host& host, const Request& request, Response& response) {
  const Timer timer(host.metrics.predict_durations());
  // Each thread has its own number of torch threads, and takes over the configured one here.
  // Otherwise each of the server's threads would start one torch thread per core.
  static thread_local const bool has_num_threads = (at::init_num_threads(), true);
  static_cast<void>(has_num_threads);
  require_json(request);
  const PredictRequest parsed = parse_predict_request(request.body, host.input);
  std::optional<modcache::ModeGuard> off;
  if (bypasses_cache(request)) off.emplace("off");
  // If the shape has not been checked, the input is the likely cause of a failure.
  const int error_status = host.input.shape.empty() ? 422 : 500;
  const c10::IValue output =
      run_model(host.model, parsed, request.get_header_value(kSaltHeader), error_status);
  set_json(response, {{"output", output_json(output)}});
}

Json mode_json() {
  return {{"mode", modcache::mode()}, {"process", modcache::settings().at("mode")}};
}

void put_mode(const Request& request, Response& response) {
  require_json(request);
  try {
    modcache::set_mode(Json::parse(request.body).at("mode").get<std::string>());
  } catch (const std::exception& error) {
    throw HttpError(400, message_of(error) + "; valid is an object such as {\"mode\": \"off\"}");
  }
  set_json(response, mode_json());
}

Json status_json(Host& host, const Request& request) {
  Json status = host.history.status(std::strtod(request.get_param_value("after").c_str(), nullptr));
  status.update(mode_json());
  status["model"] = host.model_name;
  status["dir"] = modcache::settings().at("dir");
  return status;
}

void finish_response(Host& host, const Request& request, Response& response) {
  const bool is_known =
      std::find(std::begin(kPaths), std::end(kPaths), request.path) != std::end(kPaths);
  host.metrics.count(is_known ? request.path : "other", response.status);
  if (!host.is_draining) return;
  response.headers.erase("Keep-Alive");
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

}  // namespace

void add_routes(httplib::Server& server, Host& host) {
  server.Post("/predict", [&host](const Request& request, Response& response) {
    predict(host, request, response);
  });
  server.Get("/metrics", [&host](const Request&, Response& response) {
    response.set_content(modcache::metrics() + host.metrics.text(), kPrometheus);
  });
  server.Get("/cache/mode",
             [](const Request&, Response& response) { set_json(response, mode_json()); });
  server.Put("/cache/mode", put_mode);
  server.Get("/healthz", [&host](const Request&, Response& response) {
    if (host.is_draining) throw HttpError(503, "the server is stopping");
    set_json(response, {{"ok", true}});
  });
  server.Get("/status", [&host](const Request& request, Response& response) {
    set_json(response, status_json(host, request));
  });
  server.Get("/", [](const Request&, Response& response) {
    // Nothing is loaded from elsewhere, and no other page may show the switch in a frame.
    response.set_header("Content-Security-Policy",
                        "default-src 'self' 'unsafe-inline' data:; frame-ancestors 'none'");
    response.set_content(kStatusPage, "text/html; charset=utf-8");
  });
  server.set_default_headers({{"Cache-Control", "no-store"}});
  server.set_exception_handler(
      [](const Request&, Response& response, const std::exception_ptr& exception) {
        set_exception(response, exception);
      });
  server.set_error_handler(explain_error);
  server.set_post_routing_handler([&host](const Request& request, Response& response) {
    finish_response(host, request, response);
  });
}

}  // namespace server
