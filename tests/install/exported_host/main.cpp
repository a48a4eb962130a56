// SPDX-License-Identifier: Apache-2.0
//
//     exported_host libmodcache.so program.pt2 ROWS...
//
// Runs the program on batches of these sizes, row i with the id i, and prints for each the sum of
// what came back and what the counters of hits and misses have grown to.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

long long counter(const std::string& name) {
  using Counts = c10::Dict<std::string, std::int64_t>;
  static const auto stats =
      c10::Dispatcher::singleton().findSchemaOrThrow("cache::stats", "").typed<Counts()>();
  return stats.call().at(name);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3 || dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::fprintf(stderr, "%s\n", count < 3 ? "usage: see main.cpp" : dlerror());
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader program(arguments[2]);
  for (int i = 3; i < count; ++i) {
    const std::int64_t rows = std::stoll(arguments[i]);
    const at::Tensor x = torch::linspace(-1, 1, 64 * 8).reshape({64, 8}).slice(0, 0, rows);
    const auto outputs = program.run({x, torch::arange(rows)});
    std::printf("%.4f %lld %lld\n", outputs[0].sum().item<double>(),
                counter("hits_memory") + counter("hits_disk"), counter("misses"));
  }
  return 0;
}
