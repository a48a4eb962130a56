// SPDX-License-Identifier: Apache-2.0
#include "routes.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <modcache/cache.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "answer.h"
#include "browser_origin.h"
#include "log_tail.h"
#include "page.h"
#include "refusal.h"

namespace server {
namespace {

using httplib::Request;
using httplib::Response;
using Json = nlohmann::json;

constexpr const char* kJson = "application/json";
constexpr std::size_t kMostModeBytes = 1024;
constexpr std::size_t kLongestReason = 1000;
constexpr const char* kSaltHeader = "X-Cache-Salt";

struct Route {
  const char* path;
  const char* methods;
  bool has_body;
};
constexpr Route kRoutes[] = {
    {"/predict", "POST", true},       {"/metrics", "GET, HEAD", false},
    {"/cache/mode", "PUT", true},     {"/cache/mode", "GET, HEAD", false},
    {"/healthz", "GET, HEAD", false}, {"/status", "GET, HEAD", false},
    {"/", "GET, HEAD", false},
};

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void answer_error(Response& response, int status, const std::string& reason) {
  response.status = status;
  response.set_content(dumped({{"error", reason.substr(0, kLongestReason)}}), kJson);
}

bool has_method(const Route& route, const std::string& method) {
  std::istringstream methods{std::string(route.methods)};
  for (std::string name; std::getline(methods >> std::ws, name, ',');) {
    if (name == method) return true;
  }
  return false;
}

// The route of a request, or a Refusal that says which there are.
const Route& route_of(const Request& request) {
  std::string methods;
  std::string paths;
  for (const Route& route : kRoutes) {
    if (&route == kRoutes || std::strcmp(route.path, (&route)[-1].path) != 0) {
      paths += std::string(paths.empty() ? "" : ", ") + route.path;
    }
    if (request.path != route.path) continue;
    if (has_method(route, request.method)) return route;
    methods += std::string(methods.empty() ? "" : ", ") + route.methods;
  }
  const std::string given = request.method.substr(0, 32);
  if (!methods.empty()) {
    throw Refusal(405, given + " is not for " + request.path + "; valid are " + methods);
  }
  throw Refusal(404, "there is no '" + request.path.substr(0, 200) + "'; valid are " + paths);
}

// A gateway and this server have to see the same end of a request; else what one takes for a body
// is the next request to the other.
bool has_one_end(const Request& request) {
  return !request.has_header("Transfer-Encoding") &&
         request.get_header_value_count("Content-Length") <= 1;
}

// Only what says its size before it comes is read, so that nothing is read in vain.
void check_body(const Request& request, std::size_t most_bytes) {
  if (request.get_header_value("Content-Type").compare(0, 16, kJson) != 0) {
    throw Refusal(415, "the body's Content-Type is '" +
                           request.get_header_value("Content-Type").substr(0, 100) +
                           "'; valid is application/json");
  }
  if (request.has_header("Content-Encoding")) {
    throw Refusal(415, "the body has a Content-Encoding; valid is one without");
  }
  if (!has_one_end(request) || !request.has_header("Content-Length")) {
    throw Refusal(411, "the body's size is not known; valid is one Content-Length");
  }
  const std::string text = request.get_header_value("Content-Length");
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes > most_bytes) {
    throw Refusal(413, "the body has " + text.substr(0, 100) + " bytes; valid are at most " +
                           std::to_string(most_bytes));
  }
}

// Which of two a gateway has set cannot be known.
void check_salt(const Request& request) {
  if (request.get_header_value_count(kSaltHeader) <= 1) return;
  throw Refusal(400, std::string("there are several headers ") + kSaltHeader + "; valid is one");
}

bool is_directive(std::string text, const char* name) {
  text.erase(0, text.find_first_not_of(" \t"));
  text.resize(std::min({text.find_last_not_of(" \t") + 1, text.find('='), text.size()}));
  return ::strcasecmp(text.c_str(), name) == 0;
}

bool bypasses_cache(const Request& request) {
  const auto [first, end] = request.headers.equal_range("Cache-Control");
  return std::any_of(first, end, [](const auto& header) {
    std::istringstream directives(header.second);
    for (std::string each; std::getline(directives, each, ',');) {
      if (is_directive(each, "no-cache") || is_directive(each, "no-store")) return true;
    }
    return false;
  });
}

void answer_failure(Response& response, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Refusal& refusal) {
    answer_error(response, refusal.status(), refusal.what());
  } catch (const std::bad_alloc&) {
    answer_error(response, 503, "there is not enough memory for this request now");
  } catch (const std::exception& error) {
    answer_error(response, 500, error.what());
  }
}

template <typename Number>
void read_number(const std::string& text, Number& number) {
  std::from_chars(text.data(), text.data() + text.size(), number);
}

// Measures until it goes out of scope, also by an exception.
class Timing {
 public:
  explicit Timing(Histogram& durations) : durations_(durations) {}
  ~Timing() { durations_.add(std::chrono::steady_clock::now() - started_); }
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

 private:
  Histogram& durations_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

std::string route_label(const std::string& path) {
  for (const Route& route : kRoutes) {
    if (path == route.path) return path;
  }
  return "other";
}

}  // namespace

Routes::Routes(const Configuration& configuration, const ServedModel& model, BoundedServer& server,
               Metrics& metrics, History& history)
    : configuration_(configuration),
      model_(model),
      server_(server),
      metrics_(metrics),
      history_(history),
      form_(input_form_of(configuration)) {
  server.set_default_headers(
      {{"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-store"}});
  server.set_payload_max_length(configuration.body_bytes);
  server.set_pre_routing_handler([this](const Request& request, Response& response) {
    try {
      check(request);
      return httplib::Server::HandlerResponse::Unhandled;
    } catch (const Refusal& refusal) {
      answer_error(response, refusal.status(), refusal.what());
      response.set_header("Connection", "close");  // its body is not read
      return httplib::Server::HandlerResponse::Handled;
    }
  });
  server.set_exception_handler(
      [](const Request&, Response& response, const std::exception_ptr& failure) {
        answer_failure(response, failure);
      });
  server.set_error_handler([](const Request&, Response& response) {
    if (response.body.empty())
      answer_error(response, response.status, "this is no request of HTTP");
  });
  server.set_logger([this](const Request& request, const Response& response) {
    metrics_.count(route_label(request.path), response.status);
    metrics_.add_received(request.body.size());
  });
  add_handlers();
}

void Routes::add_handlers() {
  server_.Post("/predict", [this](const Request& request, Response& response) {
    const Timing timing(metrics_.predict_durations());
    predict(request, response);
  });
  server_.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(modcache::metrics() + metrics_.text({server_.accepted(), server_.closed(),
                                                              server_.refused()}),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  server_.Get("/cache/mode", [this](const Request&, Response& response) {
    response.set_content(dumped(mode_json()), kJson);
  });
  server_.Put("/cache/mode",
              [this](const Request& request, Response& response) { put_mode(request, response); });
  server_.Get("/healthz", [this](const Request&, Response& response) {
    if (server_.is_draining()) throw Refusal(503, "the server is stopping");
    response.set_content("{\"ok\": true}\n", kJson);
  });
  server_.Get("/status",
              [this](const Request& request, Response& response) { status(request, response); });
  server_.Get("/", [](const Request&, Response& response) {
    const Page page = make_page();
    response.set_header("Content-Security-Policy", page.content_security_policy);
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_content(page.html, "text/html; charset=utf-8");
  });
}

void Routes::check(const Request& request) const {
  const Route& route = route_of(request);
  if (!route.has_body) {
    if (has_one_end(request)) return;
    throw Refusal(400,
                  "it is not known where the request ends; valid is at most one Content-Length");
  }
  check_salt(request);
  if (request.method == "PUT") check_origin(request, configuration_.names);
  check_body(request, request.method == "PUT" ? kMostModeBytes : configuration_.body_bytes);
}

void Routes::predict(const Request& request, Response& response) const {
  // torch's number of threads is one of each thread, which a thread that is new has yet to take.
  // Without it, each of many threads has a team of its own, whose members wait busily.
  static thread_local const bool has_number_of_threads = (at::init_num_threads(), true);
  (void)has_number_of_threads;
  const c10::InferenceMode no_gradients;
  const PredictRequest parsed = parse_predict_request(request.body, form_);
  std::optional<modcache::ModeGuard> off;
  if (bypasses_cache(request)) off.emplace("off");
  // Where the input's shape was checked the model should have taken it; else the input is the
  // likely cause of a failure.
  const int failure = form_.shape.empty() ? 422 : 500;
  const c10::IValue output =
      predict_or_refuse(model_, parsed, request.get_header_value(kSaltHeader), failure);
  std::string text = "{\"output\": ";
  append_json(text, output);
  text += "}\n";
  response.set_content(text, kJson);
}

Json Routes::mode_json() {
  return {{"mode", modcache::mode()}, {"process", modcache::settings().at("mode")}};
}

void Routes::put_mode(const Request& request, Response& response) {
  const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  const auto mode = body.is_object() ? body.find("mode") : body.end();
  if (!body.is_object() || mode == body.end() || !mode->is_string() || body.size() != 1) {
    throw Refusal(400, "valid is an object with 'mode' alone, such as {\"mode\": \"off\"}");
  }
  const auto& name = mode->get_ref<const std::string&>();
  const char* const modes[] = {"off", "read", "on", "refresh", "verify"};
  if (std::find(std::begin(modes), std::end(modes), name) == std::end(modes)) {
    throw Refusal(
        400, "the mode is '" + name.substr(0, 100) + "'; valid are off, read, on, refresh, verify");
  }
  modcache::set_mode(name);
  response.set_content(dumped(mode_json()), kJson);
}

void Routes::status(const Request& request, Response& response) const {
  std::int64_t after = -1;
  double started_s = 0;
  read_number(request.get_param_value("after"), after);
  read_number(request.get_param_value("started"), started_s);
  Json status = history_.status(after, started_s);
  status.update(mode_json());
  status["model"] = configuration_.model.substr(configuration_.model.find_last_of('/') + 1);
  status["dir"] = modcache::settings().at("dir");
  status["open_connections"] = server_.accepted() - server_.closed();
  Json log = Json::array();
  for (const LogTail::Message& message : LogTail::instance().messages()) {
    log.push_back({{"number", message.number},
                   {"at_s", message.at_s},
                   {"level", message.level},
                   {"text", message.text}});
  }
  status["log"] = std::move(log);
  response.set_content(dumped(status), kJson);
}

}  // namespace server
