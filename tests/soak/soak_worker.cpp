// SPDX-License-Identifier: Apache-2.0
#include "soak/soak_worker.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "fs/posix_file_system.h"
#include "store/verify/verify.h"
#include "support/text_value.h"

namespace modcache::soak {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRows = 32;
constexpr std::size_t kMostHeld = 64;

const testing::TextFormat& text_format() {
  static const testing::TextFormat format;
  return format;
}

cache::ContextPtr context_of(cache::Form form) {
  cache::ContextParts parts;
  parts.scope = "scope";
  parts.method = "forward";
  parts.form = form;
  return cache::make_context(parts);
}

// What the model gives: a function of the key, 50 bytes to 40 KB long.
std::string output_of(std::string_view key) {
  const std::uint64_t hash = xxh3_64(key.data(), key.size());
  std::string text = "f(" + std::string(key) + ")";
  const std::size_t size = hash % 16 == 0 ? hash / 16 % 40000 : 50 + hash / 16 % 2000;
  std::mt19937_64 random(hash);
  while (text.size() < size) text += std::to_string(random());
  return text;
}

class Worker {
 public:
  Worker(const WorkerOptions& options, Counts& counts)
      : options_(options), counts_(counts), random_(options.seed), cache_(text_format()) {
    // Others have the directory open too: policies and ways of reading are mixed.
    const char* policies[] = {"auto", "lru", "keep"};
    const Status status = cache_.configure({{"dir", options.directory},
                                            {"disk", std::to_string(options.budget_bytes)},
                                            {"memory", below(2) == 0 ? "0" : "1MB"},
                                            {"policy", policies[below(3)]},
                                            {"io", below(4) == 0 ? "pread" : "mmap"},
                                            {"log", "off"}});
    if (!status.is_ok()) ++counts_.errors;
  }

  void run() {
    const auto end = Clock::now() + std::chrono::milliseconds(options_.milliseconds);
    while (Clock::now() < end) {
      const std::uint64_t choice = below(1000);
      if (choice < 600) {
        call(random_key());
      } else if (choice < 960) {
        call_rows();
      } else if (choice < 990) {
        replace(random_key());
      } else if (choice < 995) {
        cache_.flush();
      } else if (choice < 996) {
        ++counts_.clears;
        (void)cache_.clear({"", std::to_string(below(10)), 0}, cache::Cache::Tier::kAll);
      } else if (choice == 996 && below(20) == 0) {
        ++counts_.clears;
        (void)cache_.clear({}, cache::Cache::Tier::kAll);
      } else if (choice == 997) {
        verify();
      }
    }
    const auto stats = cache_.stats();
    counts_.errors += stats.at("errors");
    counts_.corrupt += stats.at("corrupt");
    cache_.close();
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  // Few keys often, most of them seldom.
  std::string random_key() {
    const double share = static_cast<double>(below(1U << 20)) / (1U << 20);
    return std::to_string(
        static_cast<std::uint64_t>(share * share * share * static_cast<double>(options_.keys)));
  }

  void check(std::string_view key, std::string_view found) {
    if (found == output_of(key)) {
      ++counts_.hits;
    } else {
      ++counts_.wrong;
    }
  }

  void call(const std::string& key) {
    const cache::Mode mode = cache_.mode();
    if (!cache::may_read(mode)) return;
    const cache::Keys keys = keys_of(whole_, {&key, 1});
    cache::LookupOptions options;
    options.may_write = cache::may_write(mode);
    options.reads_values = true;
    options.will_run = options.may_write;
    cache::Found found = cache_.lookup(keys, options);
    // Another thread's run is waited for once; after that it is run here.
    if (!found.awaited.empty() && cache_.wait_for(keys.only(found.awaited)).look_again) {
      found = cache_.lookup(keys, options);
    }
    if (found.is_found(0)) {
      cache_.count_hits(keys, found, options.may_write);
      return check(key, testing::text_of(found.entry(0)));
    }
    ++counts_.misses;
    if (!options.may_write) return;
    store(keys, {key}, cache_.begin_run(keys, /*may_write=*/true));
    found.lead.stored();
  }

  void replace(const std::string& key) {
    if (!cache::may_write(cache_.mode())) return;
    store(keys_of(whole_, {&key, 1}), {key});
  }

  // Stores what the model gives for these keys.
  void store(const cache::Keys& keys, const std::vector<std::string>& names,
             const std::optional<cache::Generation>& begun = std::nullopt) {
    std::vector<cache::EntryPtr> entries;
    for (const std::string& name : names) {
      entries.push_back(testing::text_entry(output_of(name), "", 1000));
    }
    cache::StoreOptions options;
    if (begun.has_value()) options.since = &*begun;
    (void)cache_.store(keys, entries, options);
  }

  cache::Keys keys_of(const cache::ContextPtr& context, std::span<const std::string> names) {
    const std::vector<std::string_view> texts(names.begin(), names.end());
    cache::Keys keys(context, texts);
    keys.configuration = cache_.configuration();
    return keys;
  }

  void call_rows() {
    const cache::Mode mode = cache_.mode();
    if (!cache::may_read(mode)) return;
    std::vector<std::string> names;
    while (names.size() < kRows) {
      std::string name = random_key();
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(std::move(name));
      }
    }
    cache::Keys keys = keys_of(rows_, names);
    keys.form = cache::Form::kRow;
    cache::LookupOptions options;
    options.may_write = cache::may_write(mode);
    cache::Found found = cache_.lookup(keys, options);
    for (std::size_t i = 0; i < keys.size(); ++i) check_row(keys, found, i);
    cache_.count_hits(keys, found, options.may_write);
    const std::vector<std::size_t> missing = found.missing();
    counts_.misses += static_cast<std::int64_t>(missing.size());
    hold(std::move(found));
    if (!options.may_write) return;
    const cache::Generation begun = cache_.begin_run(keys, /*may_write=*/true);
    std::vector<std::string> ran;
    for (const std::size_t i : missing) ran.push_back(names[i]);
    store(keys.only(missing), ran, begun);
  }

  void check_row(const cache::Keys& keys, cache::Found& found, std::size_t i) {
    if (!found.is_found(i)) return;
    if (!found.is_row(i)) return check(keys.keys[i], testing::text_of(found.entry(i)));
    const std::size_t row = found.row(i);
    std::string text(found.rows().payload_size_bytes(row), '?');
    const Status status = found.rows().read(row, text.data());
    if (status.is_ok()) return check(keys.keys[i], text);
    cache_.refuse(keys, found, i, status, true);
  }

  // As a caller does who keeps what it found: its segments cannot go meanwhile.
  void hold(cache::Found found) {
    if (below(4) != 0) return;
    held_.push_back(std::move(found));
    if (held_.size() > kMostHeld) held_.pop_front();
  }

  void verify() {
    store::VerifyOptions options;
    options.directory = options_.directory;
    auto verification = store::verify_directory(fs::posix_file_system(), options);
    if (!verification.is_ok()) return;
    ++counts_.verifications;
    counts_.damage += verification.value().damage;
    for (const store::Finding& finding : verification.value().findings) {
      if (finding.is_damage)
        std::printf("damage: %s: %s\n", finding.file.c_str(), finding.what.c_str());
    }
    std::fflush(stdout);
  }

  const WorkerOptions& options_;
  Counts& counts_;
  std::mt19937_64 random_;
  const cache::ContextPtr whole_ = context_of(cache::Form::kWhole);
  const cache::ContextPtr rows_ = context_of(cache::Form::kRow);
  cache::Cache cache_;
  std::deque<cache::Found> held_;
};

}  // namespace

void work(const WorkerOptions& options, Counts& counts) { Worker(options, counts).run(); }

}  // namespace modcache::soak
