// SPDX-License-Identifier: Apache-2.0
//
// An example of an inference server that uses modcache. See docs/serving.md.
//
// It is for a trusted network. Access control, TLS, rate limits and limits against slow or hostile
// clients belong to a proxy in front of it.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <malloc.h>
#include <modcache/modcache.h>
#include <pthread.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "routes.h"
#include "served_model.h"

namespace {

using namespace server;

constexpr int kFailed = 1;
constexpr int kMisuse = 2;

struct Options {
  std::string model;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::size_t connections = 64;
  int threads = 1;
  InputSpec input;
  std::size_t max_body_bytes = std::size_t{4} << 20;
  int drain_ms = 1000;
  std::string dir;
  std::vector<std::string> settings;  // NAME=VALUE, of the cache
};

// Parses a size of --shape.
std::string parse_size(const std::string& text) {
  if (text == "?") return "-1";
  if (text.find_first_not_of("0123456789") == std::string::npos) return text;
  throw CLI::ValidationError("'" + text +
                             "' is not a size; valid are numbers, and ? for any size, with an x "
                             "between them, such as ?x3x224x224");
}

std::string check_setting(const std::string& text) {
  if (text.find('=') != std::string::npos) return "";
  return "'" + text + "' has no value; valid is NAME=VALUE, such as memory=2GB";
}

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--model", options.model,
                 "a TorchScript file (scripted or frozen), or a .pt2 package of AOTInductor")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--host", options.host, "address to listen on");
  app.add_option("--port", options.port, "port to listen on; 0: any free port")
      ->check(CLI::Range(0, 65535));
  app.add_option("--connections", options.connections,
                 "connections served at a time, each by a thread; others wait")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "torch threads for each run of the model")
      ->check(CLI::Range(1, 256));
  app.add_option("--dtype", options.input.dtype, "dtype of the model's input")
      ->check(CLI::IsMember({"float32", "float64", "int64"}));
  app.add_option("--shape", options.input.shape,
                 "shape of the model's input, such as ?x32; other inputs are refused")
      ->delimiter('x')
      ->transform(parse_size)
      ->default_str("any");
  app.add_option("--max-rows", options.input.max_rows,
                 "maximum size of the input's first dimension, unless --shape fixes it")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--max-body-bytes", options.max_body_bytes, "maximum size of a request's body")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--drain-ms", options.drain_ms,
                 "time between SIGTERM and the end, in which requests are still answered")
      ->check(CLI::Range(0, 3'600'000));
  app.add_option("--dir", options.dir, "directory of the cache, or a pack (default: MODCACHE_DIR)");
  app.add_option("--set", options.settings,
                 "NAME=VALUE, a setting of the cache, such as memory=2GB; may be repeated")
      ->check(check_setting)
      ->default_str("");
}

void configure_cache(const Options& options) {
  std::map<std::string, std::string> settings = {{"admission", "second"}};  // many never repeat
  if (!options.dir.empty()) settings["dir"] = options.dir;
  for (const std::string& text : options.settings) {
    const std::size_t equals = text.find('=');
    settings[text.substr(0, equals)] = text.substr(equals + 1);
  }
  modcache::configure(settings);
}

// Runs the model as often as TorchScript profiles it before it compiles it. Otherwise the first
// requests would wait for that. Throws if the model does not take --shape and --dtype.
void warm_up(const Host& host) {
  if (host.input.shape.empty()) return;
  std::vector<std::int64_t> shape = host.input.shape;
  for (std::int64_t& size : shape) size = std::max<std::int64_t>(size, 1);
  const modcache::ModeGuard off("off");
  PredictRequest request;
  request.input = at::zeros(shape, at::TensorOptions(scalar_type(host.input)));
  for (int run = 0; run < 3; ++run) run_model(host.model, request, "", 500);
  modcache::reset_stats();
}

// Returns the port.
int listen_on(httplib::Server& server, const Options& options) {
  // The default has SO_REUSEPORT too, which lets a second server take half of the connections.
  server.set_socket_options([](int socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  errno = 0;
  const int port = options.port == 0 ? server.bind_to_any_port(options.host)
                   : server.bind_to_port(options.host, options.port) ? options.port
                                                                     : -1;
  if (port >= 0) return port;
  throw std::runtime_error("cannot listen on " + options.host + ":" + std::to_string(options.port) +
                           ": " +
                           (errno != 0 ? std::strerror(errno) : "not an address of this machine"));
}

// Returns after a signal and once the requests that had been read are answered. A second signal
// ends the drain. False: the socket failed.
bool serve_until_signal(httplib::Server& server, Host& host, const sigset_t& signals,
                        int drain_ms) {
  auto serving = std::async(std::launch::async, [&] { return server.listen_after_bind(); });
  const auto has_ended = [&serving](std::chrono::milliseconds wait) {
    return serving.wait_for(wait) == std::future_status::ready;
  };
  const auto one_ms = std::chrono::milliseconds(1);
  while (!server.is_running() && !has_ended(one_ms)) {  // stop() would have no effect yet
  }
  const timespec interval{1, 0};
  while (sigtimedwait(&signals, nullptr, &interval) < 0 && !has_ended(one_ms)) {
  }
  std::printf("stopping\n");
  host.is_draining = true;
  const timespec drain{drain_ms / 1000, (drain_ms % 1000) * 1'000'000L};
  sigtimedwait(&signals, nullptr, &drain);
  server.stop();
  return serving.get();
}

int run(const Options& options, const sigset_t& signals) {
  configure_cache(options);
  at::set_num_threads(options.threads);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Host host{options.input, options.model.substr(options.model.find_last_of('/') + 1),
            load_model(options.model, cores)};
  warm_up(host);

  httplib::Server server;
  server.new_task_queue = [&options] { return new httplib::ThreadPool(options.connections); };
  server.set_payload_max_length(options.max_body_bytes);
  server.set_read_timeout(10);
  server.set_write_timeout(10);
  server.set_keep_alive_timeout(5);
  server.set_keep_alive_max_count(1'000'000);
  server.set_tcp_nodelay(true);
  add_routes(server, host);
  const int port = listen_on(server, options);
  std::printf("model       %s\n            %s\ncache       %s, mode %s\nlistening   http://%s:%d\n",
              options.model.c_str(), host.model.description.c_str(),
              modcache::settings().at("dir").c_str(), modcache::mode().c_str(),
              options.host.c_str(), port);
  std::fflush(stdout);
  const bool is_clean = serve_until_signal(server, host, signals, options.drain_ms);
  modcache::flush();
  std::printf("stopped, and all stored results are on disk\n");
  return is_clean ? 0 : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  // All threads inherit this, so that the signals reach only sigtimedwait().
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A fixed threshold returns large buffers to the system as soon as they are freed.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);

  Options options;
  CLI::App app("Example of an inference server that uses modcache.", "modcache_server");
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kMisuse;
  }
  try {
    return run(options, signals);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "modcache_server: %s\n", message_of(error).c_str());
  }
  return kFailed;
}
