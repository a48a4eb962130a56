// SPDX-License-Identifier: Apache-2.0
//
// Calls of a C++ host, all of them hits in memory, beside an operator that does nothing.
//
//     MODCACHE_LIBRARY=build/release/libmodcache.so call_bench [options of Google Benchmark]
//
// The library is loaded while the program runs, so that any build of it can be measured.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <modcache/modcache.h>
#include <torch/script.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/temporary_directory.h"

namespace {

constexpr char kKey[] = "sample-000001";

// A module whose value is 2 KiB.
torch::jit::Module make_module() {
  torch::jit::Module module("Noise");
  module.register_buffer("base", torch::randn({1, 512}));
  module.define("def forward(self, x):\n    return self.base + x\n");
  module.eval();
  return module;
}

torch::jit::Module make_identity() {
  torch::jit::Module module("Same");
  module.define("def forward(self, x):\n    return x\n");
  return module;
}

c10::OperatorHandle operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

at::Tensor call(const c10::OperatorHandle& op, const torch::jit::Module& module,
                const at::Tensor& input) {
  return modcache::detail::call_operator(op, module._ivalue(), input, kKey, "bench", "forward")
      .toTensor();
}

void no_operation(benchmark::State& state) {
  const auto module = make_module();
  const auto input = torch::ones({1, 1});
  const auto op = operator_of("modcache_bench::no_operation");
  for (auto _ : state) benchmark::DoNotOptimize(call(op, module, input));
}
BENCHMARK(no_operation);

void hit(benchmark::State& state, const std::string& scope) {
  const auto module = make_module();
  const auto input = torch::ones({1, 1});
  modcache::CallOptions options;
  options.scope = scope;
  const modcache::Keys key(kKey);
  modcache::lookup_or_run(module, input, key, options);
  for (auto _ : state) {
    benchmark::DoNotOptimize(modcache::lookup_or_run(module, input, key, options));
  }
}
BENCHMARK_CAPTURE(hit, scope, "bench");
BENCHMARK_CAPTURE(hit, fingerprint, "");

void method_alone(benchmark::State& state) {
  const auto module = make_identity();
  const auto input = torch::ones({1, 1});
  const auto op = operator_of("modcache_bench::call_method");
  for (auto _ : state) benchmark::DoNotOptimize(call(op, module, input));
}
BENCHMARK(method_alone);

void mode_off(benchmark::State& state) {
  const modcache::ModeGuard off("off");
  const auto module = make_identity();
  const auto input = torch::ones({1, 1});
  const auto op = operator_of("cache::lookup_or_run");
  for (auto _ : state) benchmark::DoNotOptimize(call(op, module, input));
}
BENCHMARK(mode_off);

}  // namespace

int main(int count, char** arguments) {
  const char* library = std::getenv("MODCACHE_LIBRARY");
  if (library == nullptr || dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "MODCACHE_LIBRARY has to name a libmodcache.so: %s\n",
                 library == nullptr ? "it is not set" : dlerror());
    return 2;
  }
  const modcache::testing::TemporaryDirectory directory;
  const char* match = std::getenv("MODCACHE_MATCH");
  modcache::configure({{"dir", directory / "cache"}, {"match", match ? match : "input"}});
  at::set_num_threads(1);
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
