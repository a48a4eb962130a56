// SPDX-License-Identifier: Apache-2.0
#include "history.h"

#include <modcache/cache.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace server {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostSamples = 600;
constexpr std::chrono::seconds kMinute{60};
constexpr std::size_t kMostScopes = 50;
constexpr std::chrono::seconds kInterval{1};
constexpr std::chrono::seconds kIntervalOfScopes{5};  // at least
constexpr int kPauseOfScopes = 20;                    // times what the last look took, at least
constexpr std::chrono::milliseconds kWaitForScopes{100};
// The page shows sums of these counters of stats(). A name that ends with _ stands for all counters
// that begin with it.
const std::map<std::string, std::vector<std::string>> kShown = {
    {"hits", {"hits_"}},
    {"misses", {"misses"}},
    {"bypassed", {"bypassed_"}},
    {"stored", {"stored"}},
    {"errors", {"errors", "corrupt"}},
    {"saved_us", {"saved_us"}},
};

bool counts_as(const std::string& counter, const std::string& name) {
  return name.back() == '_' ? counter.compare(0, name.size(), name) == 0 : counter == name;
}

std::int64_t sum_of(const std::map<std::string, std::int64_t>& stats,
                    const std::vector<std::string>& names) {
  std::int64_t sum = 0;
  for (const auto& [counter, count] : stats) {
    for (const std::string& name : names) {
      if (counts_as(counter, name)) sum += count;
    }
  }
  return sum;
}

Histogram::Counts difference(Histogram::Counts counts, const Histogram::Counts& before) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
  return counts;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

History::History(const Metrics& metrics) : metrics_(metrics), started_s_(now_s()), last_(look()) {
  thread_ = std::thread([this] { run(); });
  thread_of_scopes_ = std::thread([this] { look_at_scopes_when_asked(); });
}

History::~History() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
  thread_of_scopes_.join();
}

History::Totals History::look() const {
  return {modcache::stats(), metrics_.answers(), metrics_.predict_durations().counts()};
}

void History::run() {
  auto due = std::chrono::steady_clock::now() + kInterval;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (wake_.wait_until(lock, due, [this] { return is_ending_; })) return;
    }
    // Seconds that were missed stay without a sample, rather than get one that is late.
    const auto now = std::chrono::steady_clock::now();
    due = (now - due > kInterval / 2.0 ? now : due) + kInterval;
    try {
      add_sample();
    } catch (const std::exception& error) {  // the page goes without this second
      std::fprintf(stderr, "modcache_server: no sample: %s\n", error.what());
    }
  }
}

void History::add_sample() {
  const Totals now = look();
  Json sample = {{"at_s", now_s()}};
  for (const auto& [name, counters] : kShown) {
    // Somebody may have reset the counters.
    sample[name] =
        std::max<std::int64_t>(0, sum_of(now.stats, counters) - sum_of(last_.stats, counters));
  }
  const Histogram::Counts grown = difference(now.durations, last_.durations);
  sample["requests"] = now.answers.all - last_.answers.all;
  sample["refused"] = now.answers.refused - last_.answers.refused;
  sample["failed"] = now.answers.failed - last_.answers.failed;
  sample["p50_ms"] = quantile(grown, 0.5) * 1e3;
  sample["p99_ms"] = quantile(grown, 0.99) * 1e3;

  const std::lock_guard<std::mutex> lock(mutex_);
  sample["number"] = next_++;
  samples_.push_back(std::move(sample));
  if (samples_.size() > kMostSamples) samples_.pop_front();
  recent_.push_back({std::chrono::steady_clock::now(), now.durations});
  forget_before_last_minute();
  last_ = now;
}

void History::forget_before_last_minute() {
  const auto began = std::chrono::steady_clock::now() - kMinute;
  while (recent_.size() > 1 && recent_[1].at <= began) recent_.pop_front();
}

void History::look_at_scopes_when_asked() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_ending_ || are_scopes_asked_for_; });
    if (is_ending_) return;
    are_scopes_asked_for_ = false;
    lock.unlock();
    const auto began = std::chrono::steady_clock::now();
    std::optional<Scopes> scopes;
    try {
      scopes = modcache::bytes_by_scope();
      // No file is read in this mode. The page keeps what it knew.
      if (modcache::mode() == "off") scopes.reset();
    } catch (const std::exception& error) {  // the page has those of before
      std::fprintf(stderr, "modcache_server: no bytes of scopes: %s\n", error.what());
    }
    const auto ended = std::chrono::steady_clock::now();
    lock.lock();
    if (scopes) scopes_ = std::move(scopes);
    wake_.notify_all();
    const auto pause = std::max<std::chrono::steady_clock::duration>(
        kIntervalOfScopes, kPauseOfScopes * (ended - began));
    if (wake_.wait_until(lock, ended + pause, [this] { return is_ending_; })) return;
  }
}

// The first answer waits for them where they come soon; all others have those of the last look.
void History::ask_for_scopes(std::unique_lock<std::mutex>& lock) {
  are_scopes_asked_for_ = true;
  wake_.notify_all();
  if (!scopes_ && modcache::mode() != "off") {
    wake_.wait_for(lock, kWaitForScopes, [this] { return scopes_.has_value() || is_ending_; });
  }
}

Json History::status(std::int64_t after, double started_s) {
  if (started_s != started_s_) after = -1;  // they are numbers of a process before

  const Totals now = look();
  Json totals = Json::object();
  for (const auto& [name, counters] : kShown) totals[name] = sum_of(now.stats, counters);
  totals["requests"] = now.answers.all;
  totals["refused"] = now.answers.refused;
  totals["failed"] = now.answers.failed;

  Json samples = Json::array();
  std::vector<std::pair<std::int64_t, std::string>> scopes;
  bool has_scopes = false;
  Histogram::Counts minute = now.durations;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ask_for_scopes(lock);
    forget_before_last_minute();
    if (!recent_.empty()) minute = difference(minute, recent_.front().durations);
    for (const Json& sample : samples_) {
      if (sample["number"].get<std::int64_t>() > after) samples.push_back(sample);
    }
    has_scopes = scopes_.has_value();
    for (const auto& [scope, bytes] : scopes_.value_or(Scopes())) scopes.emplace_back(bytes, scope);
  }
  std::sort(scopes.rbegin(), scopes.rend());
  Json largest = Json::array();
  for (const auto& [bytes, scope] : scopes) {
    if (largest.size() == kMostScopes) break;
    largest.push_back({{"scope", scope}, {"bytes", bytes}});
  }
  return {{"now_s", now_s()},
          {"started_s", started_s_},
          {"totals", totals},
          {"minute",
           {{"p50_ms", quantile(minute, 0.5) * 1e3}, {"p99_ms", quantile(minute, 0.99) * 1e3}}},
          {"samples", samples},
          {"scopes", largest},
          {"scopes_in_all", has_scopes ? Json(scopes.size()) : Json()}};
}

}  // namespace server
