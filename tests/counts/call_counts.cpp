// SPDX-License-Identifier: Apache-2.0
//
// Calls of a C++ host by the path that each takes, marked for whatever counts what they do:
//
//     MODCACHE_LIBRARY=build/release/libmodcache.so call_counts CALLS [PATH...]
//
// Without a name all paths are taken, one after the other. A path is prepared and warmed up; then
// come rounds of exactly CALLS calls. Where a round begins and ends is told to strace by a write to
// no file, and to callgrind by a dump. What libcall_counters.so counted in the round, where it was
// preloaded, is printed as a line of JSON.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <modcache/modcache.h>
#include <torch/script.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "counts/call_counters.h"
#include "support/temporary_directory.h"

namespace {

using modcache::Keys;

constexpr int kWarmUpCalls = 16;  // more than TorchScript takes to settle how it runs a module
// The clock says when the cache looks after its directory and when it commits. With many short
// rounds there is one which has neither.
constexpr int kRounds = 8;

enum class Answer { kMemory, kDisk, kRun, kOff, kModule };

struct Path {
  const char* name;
  Answer answer;
  int rows;          // 0: one key for the whole value
  int row_elements;  // of float, in each row of the value
  bool has_scope = true;
};

constexpr int k2KiB = 512;
constexpr int k151KB = 197 * 192;  // the states of a small vision transformer

constexpr Path kPaths[] = {
    {"memory_hit", Answer::kMemory, 0, k2KiB},
    {"memory_hit_fingerprint", Answer::kMemory, 0, k2KiB, /*has_scope=*/false},
    {"memory_hit_151_kb", Answer::kMemory, 0, k151KB},
    {"memory_hit_1_row", Answer::kMemory, 1, k2KiB},
    {"memory_hit_256_rows", Answer::kMemory, 256, k2KiB},
    {"disk_hit", Answer::kDisk, 0, k2KiB},
    {"disk_hit_151_kb", Answer::kDisk, 0, k151KB},
    {"disk_hit_256_rows", Answer::kDisk, 256, k2KiB},
    {"miss", Answer::kRun, 0, k2KiB},
    {"miss_151_kb", Answer::kRun, 0, k151KB},
    {"miss_1_row", Answer::kRun, 1, k2KiB},
    {"miss_256_rows", Answer::kRun, 256, k2KiB},
    {"mode_off", Answer::kOff, 0, k2KiB},
    {"module_alone", Answer::kModule, 0, k2KiB},
};

torch::jit::Module make_module(int row_elements) {
  torch::jit::Module module("Noise");
  module.register_buffer("base", torch::randn({1, row_elements}));
  module.define("def forward(self, x):\n    return self.base + x\n");
  module.eval();
  return module;
}

// Keys that no other number has.
Keys make_keys(const Path& path, int number) {
  const std::string name = "sample-" + std::to_string(number);
  if (path.rows == 0) return {name};
  std::vector<std::string> keys;
  for (int row = 0; row < path.rows; ++row) keys.push_back(name + "-" + std::to_string(row));
  return {keys};
}

class Caller {
 public:
  explicit Caller(const Path& path)
      : path_(path),
        module_(make_module(path.row_elements)),
        forward_(module_.get_method("forward")),
        input_(torch::ones({path.rows == 0 ? 1 : path.rows, 1})) {
    if (path.has_scope) options_.scope = "counts";
    if (path.answer == Answer::kOff) off_.emplace("off");
  }

  // Makes the keys, so that they are no part of what is counted.
  void prepare(int calls) {
    keys_.clear();
    const bool is_new_each_time = path_.answer == Answer::kRun;
    for (int call = 0; call < calls; ++call) {
      keys_.push_back(make_keys(path_, is_new_each_time ? next_number_++ : 0));
    }
  }

  void call_all() {
    for (const Keys& keys : keys_) {
      if (path_.answer == Answer::kModule) {
        torch::jit::Stack stack{module_._ivalue(), input_};
        forward_.function().run(stack);
      } else {
        modcache::lookup_or_run(module_, input_, keys, options_);
      }
    }
  }

 private:
  const Path& path_;
  torch::jit::Module module_;
  torch::jit::Method forward_;
  const at::Tensor input_;
  modcache::CallOptions options_;
  std::optional<modcache::ModeGuard> off_;
  std::vector<Keys> keys_;
  int next_number_ = 0;
};

// Says it where strace sees it; there is no such file.
void mark(const std::string& text) {
  if (::write(-1, text.data(), text.size()) >= 0) std::abort();
}

CallCounters counters_now() {
  static const auto counters =
      reinterpret_cast<CountersOfThisThread*>(dlsym(RTLD_DEFAULT, kCountersOfThisThread));
  return counters == nullptr ? CallCounters() : *counters();
}

void print_difference(const Path& path, const CallCounters& before, const CallCounters& after) {
  const auto print = [](const char* name, std::int64_t value, const char* end) {
    std::printf("\"%s\": %lld%s", name, static_cast<long long>(value), end);
  };
  std::printf("{\"path\": \"%s\", ", path.name);
  print("allocations", after.allocations - before.allocations, ", ");
  print("allocated_bytes", after.allocated_bytes - before.allocated_bytes, ", ");
  print("locks", after.locks - before.locks, ", ");
  print("copied_bytes", after.copied_bytes - before.copied_bytes, "}\n");
}

// Throws where other answers were given than the path's name says.
void check_answers(const Path& path, int calls) {
  static const std::map<Answer, const char*> counter_of = {{Answer::kMemory, "hits_memory"},
                                                           {Answer::kDisk, "hits_disk"},
                                                           {Answer::kRun, "misses"},
                                                           {Answer::kOff, "bypassed_off"}};
  const auto counter = counter_of.find(path.answer);
  if (counter == counter_of.end()) return;
  const std::int64_t expected = std::int64_t{calls} * (path.rows == 0 ? 1 : path.rows);
  const std::int64_t counted = modcache::stats().at(counter->second);
  TORCH_CHECK(counted == expected, path.name, ": ", counter->second, " is ", counted, " and not ",
              expected);
}

void run_round(const Path& path, Caller& caller, int calls) {
  caller.prepare(calls);
  modcache::flush();
  modcache::reset_stats();
  const std::string name = path.name;
  const CallCounters before = counters_now();
  mark("begin " + name);
  CALLGRIND_ZERO_STATS;
  caller.call_all();
  CALLGRIND_DUMP_STATS_AT(path.name);
  mark("end " + name);
  print_difference(path, before, counters_now());
  check_answers(path, calls);
}

void run(const Path& path, int calls) {
  const modcache::testing::TemporaryDirectory directory;
  const bool has_memory = path.answer != Answer::kDisk;
  modcache::configure({{"dir", directory / "cache"}, {"memory", has_memory ? "1GB" : "0"}});
  Caller caller(path);
  caller.prepare(kWarmUpCalls);
  for (int half = 0; half < 2; ++half) {
    caller.call_all();
    modcache::flush();
  }
  for (int round = 0; round < kRounds; ++round) run_round(path, caller, calls);
  modcache::flush();  // before the directory goes
}

// Those of the given names, or all; none where a name is wrong.
std::vector<Path> paths_of(const std::vector<std::string>& names) {
  if (names.empty()) return {std::begin(kPaths), std::end(kPaths)};
  std::vector<Path> paths;
  for (const std::string& name : names) {
    const auto* const path = std::find_if(std::begin(kPaths), std::end(kPaths),
                                          [&](const Path& one) { return name == one.name; });
    if (path == std::end(kPaths)) return {};
    paths.push_back(*path);
  }
  return paths;
}

}  // namespace

int main(int count, char** arguments) {
  const int calls = count < 2 ? 0 : std::atoi(arguments[1]);
  const std::vector<Path> paths = paths_of({arguments + std::min(count, 2), arguments + count});
  if (calls <= 0 || paths.empty()) {
    std::fprintf(stderr, "usage: call_counts CALLS [PATH...], and the paths are");
    for (const Path& path : kPaths) std::fprintf(stderr, " %s", path.name);
    std::fprintf(stderr, "\n");
    return 2;
  }
  const char* library = std::getenv("MODCACHE_LIBRARY");
  if (library == nullptr || dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "MODCACHE_LIBRARY has to name a libmodcache.so: %s\n",
                 library == nullptr ? "it is not set" : dlerror());
    return 2;
  }
  CALLGRIND_START_INSTRUMENTATION;
  at::set_num_threads(1);
  for (const Path& path : paths) run(path, calls);
}
