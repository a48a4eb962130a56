// SPDX-License-Identifier: Apache-2.0
//
// Hit rates of the eviction policies, over the real tiers, in traces that are the same on every
// machine (support/traces.h). docs/eviction.md has the table.
//
//     eviction_bench [--tier memory|disk] [--entries N] [--room PERCENT...] [--processes N]
//                    [--trace NAME] [--json]
//
// `memory` drives a MemoryStore, or `--processes` of them, each of which gets every Nth lookup of
// the trace, as the ranks of a training run do. `disk` drives a directory through a Cache without a
// memory tier, with a budget for values of 4 KiB; `--processes` then share the directory.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/tier_of_samples.h"

namespace {

using namespace modcache;
using policy::Kind;
using testing::NamedTrace;

constexpr Kind kKinds[] = {Kind::kAuto, Kind::kLru, Kind::kKeep};

struct Options {
  std::string tier = "memory";
  bool is_json = false;
  std::size_t entries = 5000;
  std::vector<std::size_t> percents = {10, 50, 90};
  std::size_t processes = 1;
  std::string trace;  // empty: all

  bool is_disk() const { return tier == "disk"; }
};

// Returns the lookups of each process.
std::vector<NamedTrace> shares_of(const NamedTrace& named, std::size_t processes) {
  std::vector<NamedTrace> shares(processes);
  for (std::size_t i = 0; i < named.trace.size(); ++i) {
    NamedTrace& share = shares[i % processes];
    share.trace.push_back(named.trace[i]);
    if (i < named.counted_from) ++share.counted_from;
  }
  return shares;
}

// Returns the number of hits.
double hits_in_memory(Kind kind, std::size_t room, const NamedTrace& share) {
  testing::TierOfSamples samples(kind, room);
  std::size_t hits = 0;
  for (std::size_t i = 0; i < share.trace.size(); ++i) {
    const bool is_hit = samples.find_or_put(share.trace[i]);
    if (is_hit && i >= share.counted_from) ++hits;
  }
  return static_cast<double>(hits);
}

constexpr std::size_t kValueBytes = 4096;
constexpr std::size_t kOverheadBytes = 352;  // of an entry in segment and database, about
constexpr std::size_t kStoresAtOnce = 64;

std::uint64_t hits_on_disk(cache::Cache& target, const NamedTrace& share) {
  const cache::EntryPtr entry = testing::text_entry(std::string(kValueBytes, 'x'));
  cache::ContextParts parts;
  parts.scope = "samples";
  const cache::ContextPtr context = cache::make_context(parts);
  std::size_t stored = 0;
  for (std::size_t i = 0; i < share.trace.size(); ++i) {
    if (i == share.counted_from) target.reset_stats();
    const std::string key = testing::key_of(share.trace[i]);
    cache::Keys keys(context, key);
    keys.configuration = target.configuration();
    cache::LookupOptions options;
    options.may_write = true;
    options.reads_values = true;
    const cache::Found found = target.lookup(keys, options);
    target.count_hits(keys, found, /*may_write=*/true);
    if (!found.is_found(0)) {
      target.store(keys, {&entry, 1});
      // A real module takes longer than this loop, so the store's threads would keep up.
      if (++stored % kStoresAtOnce == 0) target.flush();
    }
  }
  return static_cast<std::uint64_t>(target.stats().at("hits_disk"));
}

// Runs each share in a child process, which writes its hits to a pipe.
double hits_on_disk(Kind kind, std::size_t room, const std::vector<NamedTrace>& shares) {
  static const testing::TextFormat format;
  const testing::TemporaryDirectory directory;
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  for (const NamedTrace& share : shares) {
    if (::fork() == 0) {
      cache::Cache target(format);
      const auto budget = std::to_string(room * (kValueBytes + kOverheadBytes));
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
  }
  double found = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    std::uint64_t hits = 0;
    if (::read(ends[0], &hits, sizeof hits) != sizeof hits) std::abort();
    found += static_cast<double>(hits);
  }
  for (std::size_t i = 0; i < shares.size(); ++i) ::wait(nullptr);
  ::close(ends[0]);
  ::close(ends[1]);
  return found;
}

double hit_rate(Kind kind, std::size_t room, const NamedTrace& named, const Options& options) {
  const auto shares = shares_of(named, options.processes);
  double hits = 0;
  if (options.is_disk()) {
    hits = hits_on_disk(kind, room, shares);
  } else {
    for (const NamedTrace& share : shares) hits += hits_in_memory(kind, room, share);
  }
  return hits / static_cast<double>(named.trace.size() - named.counted_from);
}

double best_possible(std::size_t room, const NamedTrace& named, const Options& options) {
  if (options.is_disk()) return testing::best_possible(named, room);
  double sum = 0;
  for (const NamedTrace& share : shares_of(named, options.processes)) {
    sum += testing::best_possible(share, room);
  }
  return sum / static_cast<double>(options.processes);
}

// The hit rates of one trace; each has one for each size of the tier.
struct Row {
  std::string trace;
  std::vector<std::pair<std::string, std::vector<double>>> columns;
};

Row measure(std::size_t trace, const Options& options) {
  Row row;
  for (const Kind kind : kKinds) row.columns.emplace_back(policy::kind_name(kind), 0);
  row.columns.emplace_back("best possible", 0);
  for (const std::size_t percent : options.percents) {
    const std::size_t room = std::max<std::size_t>(options.entries * percent / 100, 2);
    const NamedTrace named = testing::traces_of(options.entries, room)[trace];
    row.trace = named.name;
    std::size_t column = 0;
    for (const Kind kind : kKinds) {
      row.columns[column++].second.push_back(hit_rate(kind, room, named, options));
    }
    row.columns[column].second.push_back(best_possible(room, named, options));
  }
  return row;
}

void print_markdown(const Row& row) {
  std::printf("| %s |", row.trace.c_str());
  for (const auto& [name, rates] : row.columns) {
    const char* separator = " ";
    for (const double rate : rates) {
      std::printf("%s%.1f", separator, 100 * rate);
      separator = " / ";
    }
    std::printf(" |");
  }
  std::printf("\n");
}

void print_json(const Row& row, const Options& options, bool is_first) {
  for (std::size_t i = 0; i < options.percents.size(); ++i) {
    std::printf("%s  {\"trace\": \"%s\", \"room\": %zu", is_first && i == 0 ? "" : ",\n",
                row.trace.c_str(), options.percents[i]);
    for (const auto& [name, rates] : row.columns) {
      std::printf(", \"%s\": %.4f", name.c_str(), rates[i]);
    }
    std::printf("}");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App arguments("Hit rates of the eviction policies, over the real tiers.");
  arguments.add_option("--tier", options.tier)
      ->check(CLI::IsMember({"memory", "disk"}))
      ->capture_default_str();
  arguments.add_option("--entries", options.entries, "Size of the dataset")
      ->check(CLI::Range(100, 10'000'000))
      ->capture_default_str();
  arguments.add_option("--room", options.percents, "Sizes of the tier, in percent of the dataset")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  arguments
      .add_option("--processes", options.processes, "Number of processes that share the trace")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--trace", options.trace, "Only the trace of this name");
  arguments.add_flag("--json", options.is_json);
  CLI11_PARSE(arguments, argc, argv);
  if (options.is_json) {
    std::printf("[\n");
  } else {
    std::printf("| trace |");
    for (const Kind kind : kKinds) std::printf(" `%s` |", policy::kind_name(kind).data());
    std::printf(" best possible |\n| --- |");
    for (std::size_t i = 0; i < std::size(kKinds) + 1; ++i) std::printf(" --- |");
    std::printf("\n");
  }
  bool is_first = true;
  const auto names = testing::traces_of(100, 100);
  for (std::size_t trace = 0; trace < names.size(); ++trace) {
    if (!options.trace.empty() && options.trace != names[trace].name) continue;
    const Row row = measure(trace, options);
    options.is_json ? print_json(row, options, is_first) : print_markdown(row);
    std::fflush(stdout);
    is_first = false;
  }
  if (options.is_json) std::printf("\n]\n");
}
