// SPDX-License-Identifier: Apache-2.0
//
// What share of lookups each policy finds, over the real tiers, in traces that are the same on
// every machine. docs/eviction.md has the figures.
//
//     eviction_bench [--tier memory|disk] [--room SAMPLES] [--processes N] [--trace NAME] [--json]
//
// `memory` drives a MemoryStore; with `--processes` N of them, each of which sees every Nth lookup
// of the trace, as the ranks of a training run do. `disk` drives a directory's Store by way of a
// Cache without a memory tier, whose budget has room for so many samples of 16 KiB; `--processes`
// are then so many that share it.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/tier_of_samples.h"

namespace {

using namespace modcache;
using policy::Kind;
using testing::NamedTrace;
using testing::Trace;

constexpr Kind kKinds[] = {Kind::kLru, Kind::kKeep, Kind::kAuto};

struct Options {
  std::string tier = "memory";
  bool is_json = false;
  std::size_t room = 1000;
  std::size_t processes = 1;
  std::string trace;  // empty: all

  bool is_disk() const { return tier == "disk"; }
};

std::vector<Trace> shares_of(const Trace& trace, std::size_t processes) {
  std::vector<Trace> shares(processes);
  for (std::size_t i = 0; i < trace.size(); ++i) shares[i % processes].push_back(trace[i]);
  return shares;
}

double found_in_memory(Kind kind, const Trace& trace, const Options& options) {
  double found = 0;
  for (const Trace& share : shares_of(trace, options.processes)) {
    testing::TierOfSamples samples(kind, options.room);
    found += samples.found_of(share) * static_cast<double>(share.size());
  }
  return found / static_cast<double>(trace.size());
}

constexpr std::size_t kValueBytes = 16384;
constexpr std::size_t kStoresAtOnce = 64;

std::uint64_t hits_on_disk(cache::Cache& target, const Trace& trace) {
  const cache::EntryPtr entry = testing::text_entry(std::string(kValueBytes, 'x'));
  cache::ContextParts parts;
  parts.scope = "samples";
  const cache::ContextPtr context = cache::make_context(parts);
  std::size_t stored = 0;
  for (const std::uint32_t sample : trace) {
    const std::string key = testing::key_of(sample);
    cache::SingleFlight::Lead lead;
    if (target.session()->lookup({context, key, {}}, true, lead) == nullptr) {
      target.session()->store({context, key, {}}, entry);
      // What computes its values is slower than this loop; the store's threads keep up with it.
      if (++stored % kStoresAtOnce == 0) target.flush();
    }
  }
  return static_cast<std::uint64_t>(target.stats().at("hits_disk"));
}

// In children, one for each share; the hits come back by a pipe.
double found_on_disk(Kind kind, const Trace& trace, const Options& options) {
  static const testing::TextFormat format;
  const testing::TemporaryDirectory directory;
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  std::size_t children = 0;
  for (const Trace& share : shares_of(trace, options.processes)) {
    if (::fork() == 0) {
      cache::Cache target(format);
      const auto budget = std::to_string(options.room * (kValueBytes + 512));
      if (!target
               .configure({{"dir", directory / "cache"},
                           {"memory", "0"},
                           {"disk", budget},
                           {"log", "error"},
                           {"policy", std::string(policy::kind_name(kind))}})
               .is_ok()) {
        std::abort();
      }
      const std::uint64_t hits = hits_on_disk(target, share);
      if (::write(ends[1], &hits, sizeof hits) != sizeof hits) std::abort();
      target.close();
      ::_exit(0);
    }
    ++children;
  }
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < children; ++i) {
    std::uint64_t hits = 0;
    if (::read(ends[0], &hits, sizeof hits) != sizeof hits) std::abort();
    found += hits;
  }
  for (std::size_t i = 0; i < children; ++i) ::wait(nullptr);
  ::close(ends[0]);
  ::close(ends[1]);
  return static_cast<double>(found) / static_cast<double>(trace.size());
}

void print_row(const Options& options, const NamedTrace& named, bool is_last) {
  std::printf(options.is_json ? "  {\"trace\": \"%s\"" : "| %-27s", named.name.c_str());
  std::fflush(stdout);
  const auto print = [&](std::string_view name, double share) {
    if (options.is_json) {
      std::printf(", \"%.*s\": %.4f", static_cast<int>(name.size()), name.data(), share);
    } else {
      std::printf(" | %.3f", share);
    }
    std::fflush(stdout);
  };
  for (const Kind kind : kKinds) {
    print(policy::kind_name(kind), options.is_disk() ? found_on_disk(kind, named.trace, options)
                                                     : found_in_memory(kind, named.trace, options));
  }
  double most = 0;
  if (options.is_disk() || options.processes == 1) {
    most = testing::ceiling_of(named.trace, options.room);
  } else {
    for (const Trace& share : shares_of(named.trace, options.processes)) {
      most += testing::ceiling_of(share, options.room) / static_cast<double>(options.processes);
    }
  }
  print("ceiling", most);
  std::printf(options.is_json ? (is_last ? "}\n" : "},\n") : " |\n");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App arguments("What share of lookups each policy finds, over the real tiers.");
  arguments.add_option("--tier", options.tier)
      ->check(CLI::IsMember({"memory", "disk"}))
      ->capture_default_str();
  arguments.add_option("--room", options.room, "Samples that there is room for")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--processes", options.processes, "Among which lookups are dealt out")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--trace", options.trace, "One alone, by its name in the table");
  arguments.add_flag("--json", options.is_json);
  CLI11_PARSE(arguments, argc, argv);
  const std::vector<NamedTrace> traces =
      testing::traces_for(options.room * (options.is_disk() ? 1 : options.processes));
  if (options.is_json) {
    std::printf("[\n");
  } else {
    std::printf("| %-27s | lru | keep | auto | ceiling |\n", "trace");
    std::printf("| --- | --- | --- | --- | --- |\n");
  }
  for (const NamedTrace& named : traces) {
    if (!options.trace.empty() && options.trace != named.name) continue;
    print_row(options, named, &named == &traces.back() || !options.trace.empty());
  }
  if (options.is_json) std::printf("]\n");
}
