// SPDX-License-Identifier: Apache-2.0
//
// What a directory of many entries costs: to open, to find one in, in memory and on disk.
//
//     index_scale [--entries N]... [--readers N] [--directory FOLDER] [--json]
//
// Each size is filled by one process, closed, and measured by others that know nothing of it: what
// a figure is of says kFigures.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "bench/index_scale_figures.h"
#include "fs/posix_file_system.h"
#include "policy/policy.h"
#include "store/directory/directory.h"
#include "store/store.h"
#include "support/child_process.h"
#include "support/temporary_directory.h"

namespace {

using namespace modcache;
using namespace modcache::bench;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kKeyBytes = 24;
constexpr std::size_t kLeastValueBytes = 64;
constexpr std::size_t kMostValueBytes = 256;
constexpr std::size_t kFillRows = 4096;
constexpr std::size_t kBatchRows = 256;
// Few enough that what they touch stays in the processor's caches, at every size alike.
constexpr std::size_t kFewKeys = 1000;
constexpr std::size_t kManyLookups = 100000;
constexpr int kRounds = 20;
constexpr int kProcesses = 3;  // of whose figures each time the median is taken
constexpr std::size_t kRowsTimedAtOnce = 50;
constexpr std::uint64_t kBudgetBytesPerEntry = 1024;
constexpr std::uint64_t kLeastBudgetBytes = 64 << 20;

struct Plan {
  std::vector<std::size_t> sizes{1000, 10000, 100000, 1000000};
  std::size_t readers = 32;
  std::string folder;
  bool is_json = false;
};

const store::Context& context() {
  static const store::Context bench{xxh3_128("index_scale"), "bench", "index_scale"};
  return bench;
}

std::string key_of(std::size_t i) {
  std::string key = std::to_string(i);
  key.insert(0, kKeyBytes - key.size(), '0');
  return key;
}

std::unique_ptr<store::Store> open(const std::string& folder, std::size_t entries) {
  store::StoreOptions options;
  options.directory = folder;
  options.disk_budget_bytes = std::max(kLeastBudgetBytes, entries * kBudgetBytesPerEntry);
  options.patience_ms = 60000;  // readers open at the same time, on a machine with few processors
  options.make_policy = [](void* shared_state) {
    return policy::make_policy(policy::Kind::kAuto, shared_state);
  };
  auto opened = store::Store::open(fs::posix_file_system(), options);
  if (!opened.is_ok()) {
    std::fprintf(stderr, "%s\n", opened.status().message().c_str());
    std::abort();
  }
  return std::move(opened).value();
}

double seconds_of(const std::function<void()>& work) {
  const auto started = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - started).count();
}

// In a process of its own, which gives back what it noted.
void in_child(Figures& figures, const std::function<void(Figures&)>& work) {
  ::malloc_trim(0);  // what the child would use up before it asks for memory
  testing::Pipe pipe;
  const testing::ChildProcess child([&] {
    work(figures);
    pipe.write(figures);
    return 0;
  });
  pipe.close_writing();
  if (!pipe.read(figures)) std::abort();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Filling

void put_rows(store::Store& store, std::size_t begin, std::size_t end, std::mt19937_64& random) {
  std::vector<std::string> keys;
  std::vector<store::RowPut> puts;
  keys.reserve(end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    std::string value(kLeastValueBytes + random() % (kMostValueBytes - kLeastValueBytes + 1), '\0');
    for (char& byte : value) byte = static_cast<char>(random());
    keys.push_back(key_of(i));
    store::RowPut put;
    put.key = keys.back();
    put.header = "float32[64]";
    put.payload = share_bytes(std::move(value));
    puts.push_back(std::move(put));
  }
  std::vector<store::Sequence> sequences;
  const Status status = store.put_all(context(), puts, sequences);
  if (status.is_ok() && std::count(sequences.begin(), sequences.end(), 0U) == 0) return;
  std::fprintf(stderr, "not kept: %s\n", status.message().c_str());
  std::abort();
}

void fill(const std::string& folder, std::size_t entries, Figures& figures) {
  std::mt19937_64 random(1);
  figures[kFillSeconds] = seconds_of([&] {
    const auto store = open(folder, entries);
    for (std::size_t i = 0; i < entries; i += kFillRows) {
      put_rows(*store, i, std::min(entries, i + kFillRows), random);
    }
    if (!store->flush().is_ok()) std::abort();
  });
}

// Finding

struct Lookups {
  std::vector<std::string> few;
  std::vector<std::string> any;
  std::vector<std::string> few_missing;
  std::vector<std::string> any_missing;
};

Lookups make_lookups(std::size_t entries) {
  Lookups lookups;
  std::mt19937_64 random(2);
  for (std::size_t i = 0; i < std::min(entries, kFewKeys); ++i) {
    lookups.few.push_back(key_of(entries <= kFewKeys ? i : random() % entries));
    lookups.few_missing.push_back(key_of(entries + random() % entries));
  }
  for (std::size_t i = 0; i < std::min(entries, kManyLookups); ++i) {
    lookups.any.push_back(key_of(random() % entries));
    lookups.any_missing.push_back(key_of(entries + random() % entries));
  }
  return lookups;
}

void hit(store::Store& store, const std::string& key) {
  char payload[kMostValueBytes];
  const auto found = store.find({context(), key});
  if (!found.is_ok() || !found.value()->read_payload(payload).is_ok()) std::abort();
}

void miss(store::Store& store, const std::string& key) {
  if (!store.find({context(), key}).is_not_found()) std::abort();
}

void hit_all(store::Store& store, const std::vector<std::string>& keys, std::size_t begin) {
  const std::size_t end = std::min(keys.size(), begin + kBatchRows);
  const store::FoundEntries found =
      store.find_all(context(), {keys.begin() + static_cast<std::ptrdiff_t>(begin),
                                 keys.begin() + static_cast<std::ptrdiff_t>(end)});
  char payload[kMostValueBytes];
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.has(i) || !found.read(i, payload).is_ok()) std::abort();
  }
}

// ns for one key, once through `keys`: each part's, of some dozens.
std::vector<double> times_of(const std::vector<std::string>& keys, std::size_t rows_at_once,
                             const std::function<void(std::size_t, std::size_t)>& work) {
  std::vector<double> times;
  for (std::size_t i = 0; i < keys.size(); i += rows_at_once) {
    const std::size_t end = std::min(keys.size(), i + rows_at_once);
    times.push_back(1e9 * seconds_of([&] { work(i, end); }) / static_cast<double>(end - i));
  }
  return times;
}

using OneKey = void (*)(store::Store&, const std::string&);

double first_ns(store::Store& store, const std::vector<std::string>& keys, OneKey look) {
  const double seconds = seconds_of([&] {
    for (const std::string& key : keys) look(store, key);
  });
  return 1e9 * seconds / static_cast<double>(keys.size());
}

double again_ns(store::Store& store, const std::vector<std::string>& keys, OneKey look) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto of_round = times_of(keys, kRowsTimedAtOnce, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) look(store, keys[i]);
    });
    times.insert(times.end(), of_round.begin(), of_round.end());
    if (keys.size() >= kManyLookups) break;
  }
  return median(times);
}

double batch_ns(store::Store& store, const std::vector<std::string>& keys) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto of_round = times_of(
        keys, kBatchRows, [&](std::size_t begin, std::size_t) { hit_all(store, keys, begin); });
    times.insert(times.end(), of_round.begin(), of_round.end());
    if (keys.size() >= kManyLookups) break;
  }
  return median(times);
}

// Memory

struct Memory {
  double own_kib = 0;      // of no file
  double files_kib = 0;    // of mapped files, which processes share
  double pss_kib = 0;      // with a share of what others have mapped as well
  double private_kib = 0;  // what nobody else has mapped
};

Memory memory() {
  Memory memory;
  double resident = 0;
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    char name[64];
    double kib = 0;
    if (std::sscanf(line.c_str(), "%63[^:]: %lf kB", name, &kib) != 2) continue;
    const std::string_view field = name;
    if (field == "Rss") resident = kib;
    if (field == "Anonymous") memory.own_kib = kib;
    if (field == "Pss") memory.pss_kib = kib;
    if (field == "Private_Clean" || field == "Private_Dirty") memory.private_kib += kib;
  }
  memory.files_kib = resident - memory.own_kib;
  return memory;
}

void note_memory(const Memory& before, Figures& figures, Figure own, Figure files) {
  const Memory now = memory();
  figures[own] = now.own_kib - before.own_kib;
  figures[files] = now.files_kib - before.files_kib;
}

void measure(const std::string& folder, std::size_t entries, const Lookups& lookups,
             Figures& figures) {
  const Memory before = memory();
  std::unique_ptr<store::Store> store;
  figures[kOpenMs] = 1e3 * seconds_of([&] { store = open(folder, entries); });
  note_memory(before, figures, kOpenOwnKib, kOpenFilesKib);
  figures[kFewFirst] = first_ns(*store, lookups.few, hit);
  note_memory(before, figures, kFewOwnKib, kFewFilesKib);
  figures[kFewHit] = again_ns(*store, lookups.few, hit);
  figures[kFewMiss] = again_ns(*store, lookups.few_missing, miss);
  figures[kFewBatch] = batch_ns(*store, lookups.few);
  figures[kAnyFirst] = first_ns(*store, lookups.any, hit);
  figures[kAnyHit] = again_ns(*store, lookups.any, hit);
  figures[kAnyMiss] = again_ns(*store, lookups.any_missing, miss);
  figures[kAnyBatch] = batch_ns(*store, lookups.any);
  note_memory(before, figures, kAnyOwnKib, kAnyFilesKib);
}

// Each asks for few and for any keys, and all are there when the memory is counted.
void measure_readers(const Plan& plan, const std::string& folder, std::size_t entries,
                     const Lookups& lookups, Figures& figures) {
  ::malloc_trim(0);
  testing::Pipe is_ready;
  testing::Pipe may_count;
  testing::Pipe counts;
  testing::Pipe may_end;
  std::vector<std::unique_ptr<testing::ChildProcess>> children;
  for (std::size_t i = 0; i < plan.readers; ++i) {
    children.push_back(std::make_unique<testing::ChildProcess>([&] {
      may_end.close_writing();
      const Memory before = memory();
      const auto store = open(folder, entries);
      for (const std::string& key : lookups.few) hit(*store, key);
      for (const std::string& key : lookups.any) hit(*store, key);
      char token = 0;
      is_ready.write(token);
      may_count.read(token);
      const Memory now = memory();
      counts.write(std::array<double, 2>{now.pss_kib - before.pss_kib,
                                         now.private_kib - before.private_kib});
      may_end.read(token);
      return 0;
    }));
  }
  char token = 0;
  for (std::size_t i = 0; i < plan.readers; ++i) is_ready.read(token);
  for (std::size_t i = 0; i < plan.readers; ++i) may_count.write(token);
  figures[kReadersPssMib] = figures[kReadersPrivateMib] = 0;
  for (std::size_t i = 0; i < plan.readers; ++i) {
    std::array<double, 2> kib{};
    counts.read(kib);
    figures[kReadersPssMib] += kib[0] / 1024;
    figures[kReadersPrivateMib] += kib[1] / 1024;
  }
  may_end.close_writing();
  for (const auto& child : children) child->wait();
}

void evict(const std::string& folder, std::size_t entries, Figures& figures) {
  const auto store = open(folder, entries);
  const auto totals = store->totals();
  if (!totals.is_ok()) std::abort();
  const auto target = static_cast<std::uint64_t>(totals.value().size_bytes) / 10 * 9;
  figures[kEvictMs] = 1e3 * seconds_of([&] {
                        const auto evicted = store->evict(target);
                        if (!evicted.is_ok()) std::abort();
                        figures[kEvictedEntries] = static_cast<double>(evicted.value().entries);
                      });
}

Figures measure_size(const Plan& plan, std::size_t entries) {
  const testing::TemporaryDirectory temporary;
  const std::string folder =
      plan.folder.empty() ? temporary / "cache" : plan.folder + "/" + std::to_string(entries);
  Figures figures{};
  in_child(figures, [&](Figures& noted) { fill(folder, entries, noted); });
  const store::Directory directory(fs::posix_file_system(), folder);
  const auto bytes_per_entry = [&](const std::string& path) {
    const auto info = directory.file_system().info(path);
    return info.is_ok()
               ? static_cast<double>(info.value().size_bytes) / static_cast<double>(entries)
               : 0.0;
  };
  figures[kMapBytes] = bytes_per_entry(directory.index_map_path());
  figures[kDatabaseBytes] =
      bytes_per_entry(directory.database_path()) + bytes_per_entry(directory.wal_path());
  const Lookups lookups = make_lookups(entries);
  std::vector<Figures> of_processes(kProcesses, figures);
  for (Figures& noted : of_processes) {
    in_child(noted, [&](Figures& inner) { measure(folder, entries, lookups, inner); });
  }
  for (int i = 0; i < kFigureCount; ++i) {
    std::vector<double> values;
    for (const Figures& noted : of_processes) values.push_back(noted[static_cast<std::size_t>(i)]);
    figures[static_cast<std::size_t>(i)] = median(values);
  }
  measure_readers(plan, folder, entries, lookups, figures);
  in_child(figures, [&](Figures& noted) { evict(folder, entries, noted); });
  return figures;
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  CLI::App arguments(
      "What a directory of many entries costs: to open, to find one in, in memory "
      "and on disk.");
  arguments.add_option("--entries", plan.sizes, "How many; 10^7 take some 10 GB of disk")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--readers", plan.readers, "Processes that share one index")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--directory", plan.folder, "Where to fill; a new one by default");
  arguments.add_flag("--json", plan.is_json);
  CLI11_PARSE(arguments, argc, argv);
  std::vector<Figures> figures;
  for (const std::size_t entries : plan.sizes) figures.push_back(measure_size(plan, entries));
  plan.is_json ? print_json(plan.sizes, figures) : print_table(plan.sizes, figures);
}
