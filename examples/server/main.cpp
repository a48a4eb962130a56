// SPDX-License-Identifier: Apache-2.0
//
// An inference server whose model modcache answers for. See docs/serving.md.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <modcache/modcache.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "arguments.h"
#include "bounded_server.h"
#include "history.h"
#include "log_tail.h"
#include "metrics.h"
#include "routes.h"
#include "served_model.h"

namespace {

using namespace server;

constexpr int kStopped = 0;
constexpr int kFailed = 1;

void configure_cache(const Configuration& configuration) {
  std::map<std::string, std::string> settings = configuration.settings;
  settings.emplace("admission", "second");  // traffic may never repeat
  modcache::configure(settings);
}

// Runs the model as often as TorchScript observes it before it compiles it. Otherwise the first
// requests, which come at once, would all wait for that. Throws where the model does not take what
// --shape and --dtype say.
void warm_up(const ServedModel& model, const InputForm& form) {
  if (form.shape.empty()) return;
  std::vector<std::int64_t> shape = form.shape;
  for (std::int64_t& size : shape) size = std::max<std::int64_t>(size, 1);
  const c10::InferenceMode no_gradients;
  const modcache::ModeGuard off("off");
  PredictRequest request;
  request.input = at::zeros(shape, at::TensorOptions(form.dtype));
  for (int run = 0; run < 3; ++run) predict_or_refuse(model, request, "", 500);
  modcache::reset_stats();  // nobody asked for these
}

ConnectionBounds bounds_of(const Configuration& configuration) {
  ConnectionBounds bounds;
  bounds.connections = configuration.connections;
  bounds.request.body_bytes = configuration.body_bytes;
  bounds.request.arrival = std::chrono::milliseconds(configuration.request_timeout_ms);
  bounds.idle = std::chrono::milliseconds(configuration.idle_timeout_ms);
  return bounds;
}

// Blocks the signals that end a server in this thread and all that it starts.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Returns once a signal asked the server to stop and it has answered what it had taken. The first
// signal lets it go on for a while, with the word in each answer that its connection ends, so that
// clients and balancers turn away before it is gone; a second one ends that while.
// False: the socket failed.
bool serve_until_signal(BoundedServer& server, const sigset_t& signals, int drain_ms) {
  std::atomic<bool> has_failed{false};
  std::thread serving([&] {
    if (server.serve()) return;
    has_failed = true;
    kill(getpid(), SIGTERM);
  });
  // Entries that are kept for long lie between buffers that runs need for a moment. They keep glibc
  // from giving the pages of those buffers back by itself, so that it is told to.
  const timespec interval{30, 0};
  while (sigtimedwait(&signals, nullptr, &interval) < 0) malloc_trim(0);
  std::printf("stopping\n");
  server.drain();
  const timespec drain{drain_ms / 1000, (drain_ms % 1000) * 1'000'000L};
  sigtimedwait(&signals, nullptr, &drain);
  server.stop_serving();
  serving.join();
  return !has_failed;
}

// Gives large buffers back as soon as they are free. Otherwise each thread might keep those of the
// largest request that it ever had.
void keep_no_large_buffers() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

int run(const Configuration& configuration, const sigset_t& signals) {
  LogTail::instance().begin();
  configure_cache(configuration);
  at::set_num_threads(configuration.threads);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::unique_ptr<ServedModel> model = load_model(configuration.model, cores);
  warm_up(*model, input_form_of(configuration));

  BoundedServer server(bounds_of(configuration));
  Metrics metrics;
  History history(metrics);
  const Routes routes(configuration, *model, server, metrics, history);
  const int port = server.bind(configuration.host, configuration.port);
  std::printf("model       %s\n            %s\ncache       %s, mode %s\nlistening   http://%s:%d\n",
              configuration.model.c_str(), model->description().c_str(),
              modcache::settings().at("dir").c_str(), modcache::mode().c_str(),
              configuration.host.c_str(), port);
  std::fflush(stdout);
  const bool was_asked_to_stop = serve_until_signal(server, signals, configuration.drain_ms);
  modcache::flush();
  std::printf("stopped, and what was stored is on disk\n");
  return was_asked_to_stop ? kStopped : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  const sigset_t signals = block_stop_signals();
  keep_no_large_buffers();
  Configuration configuration;
  int exit_code = kStopped;
  if (!read_arguments(argc, argv, configuration, exit_code)) return exit_code;
  try {
    return run(configuration, signals);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "modcache_server: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "modcache_server: %s\n", error.what());
  }
  return kFailed;
}
