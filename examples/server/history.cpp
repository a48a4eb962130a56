// SPDX-License-Identifier: Apache-2.0
#include "history.h"

#include <modcache/cache.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace server {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxSamples = 600;
constexpr std::size_t kMaxScopes = 50;
constexpr std::chrono::seconds kSampleInterval{1};
constexpr std::size_t kSamplesPerMinute = 60;
constexpr std::chrono::seconds kMinScanInterval{5};
constexpr std::chrono::milliseconds kFirstScanWait{100};

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns the name under which the page shows a counter of stats(), or "" if it does not.
std::string shown_name(const std::string& counter) {
  if (counter.starts_with("hits_")) return "hits";
  if (counter.starts_with("bypassed_")) return "bypassed";
  if (counter == "errors" || counter == "corrupt") return "errors";
  if (counter == "misses" || counter == "stored" || counter == "saved_us") return counter;
  return "";
}

Histogram::Counts difference(Histogram::Counts counts, const Histogram::Counts& before) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
  return counts;
}

Json latencies(const Histogram::Counts& counts) {
  return {{"p50_ms", quantile(counts, 0.5) * 1e3}, {"p99_ms", quantile(counts, 0.99) * 1e3}};
}

}  // namespace

History::History(const Metrics& metrics)
    : metrics_(metrics),
      started_s_(now_s()),
      last_(read_totals()),
      sampler_([this](const std::stop_token& stop) { run(stop); }) {}

History::Totals History::read_totals() const {
  Totals totals{metrics_.predict_counters(), metrics_.predict_durations().counts()};
  for (const auto& [counter, count] : modcache::stats()) {
    const std::string name = shown_name(counter);
    if (!name.empty()) totals.counters[name] += count;
  }
  return totals;
}

void History::run(const std::stop_token& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, kSampleInterval, [] { return false; });
    add_sample();
  }
}

void History::add_sample() {
  Totals now = read_totals();
  Json sample = latencies(difference(now.durations, last_.durations));
  sample["at_s"] = now_s();
  for (const auto& [name, count] : now.counters) {
    // A reset of the counters makes them smaller.
    sample[name] = std::max<std::int64_t>(0, count - last_.counters[name]);
  }
  samples_.push_back(std::move(sample));
  if (samples_.size() > kMaxSamples) samples_.pop_front();
  last_minute_.push_back(last_.durations);
  if (last_minute_.size() > kSamplesPerMinute) last_minute_.pop_front();
  last_ = std::move(now);
}

History::Scan History::scan_scopes() {
  const Clock::time_point start = Clock::now();
  Scan scan{modcache::bytes_by_scope(), {}};
  if (modcache::mode() == "off") scan.scopes.reset();  // no file is read in this mode
  const Clock::time_point end = Clock::now();
  scan.next = end + std::max<Clock::duration>(kMinScanInterval, 20 * (end - start));
  return scan;
}

void History::refresh_scopes() {
  if (!scan_.valid() && Clock::now() >= next_scan_) {
    scan_ = std::async(std::launch::async, scan_scopes);
  }
  const auto wait = scopes_ ? std::chrono::milliseconds(0) : kFirstScanWait;
  if (!scan_.valid() || scan_.wait_for(wait) != std::future_status::ready) return;
  Scan scan = scan_.get();
  if (scan.scopes) scopes_ = std::move(scan.scopes);
  next_scan_ = scan.next;
}

Json History::status(double after_s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Totals now = read_totals();
  refresh_scopes();

  Json samples = Json::array();
  for (const Json& sample : samples_) {
    if (sample["at_s"] > after_s) samples.push_back(sample);
  }
  std::vector<std::pair<std::int64_t, std::string>> by_size;
  if (scopes_) {
    for (const auto& [scope, bytes] : *scopes_) by_size.emplace_back(bytes, scope);
  }
  std::sort(by_size.rbegin(), by_size.rend());
  Json scopes = Json::array();
  for (std::size_t i = 0; i < std::min(by_size.size(), kMaxScopes); ++i) {
    scopes.push_back({{"scope", by_size[i].second}, {"bytes", by_size[i].first}});
  }
  const Histogram::Counts before = last_minute_.empty() ? Histogram::Counts{} : last_minute_[0];
  return {{"now_s", now_s()},
          {"started_s", started_s_},
          {"totals", now.counters},
          {"minute", latencies(difference(now.durations, before))},
          {"samples", samples},
          {"scopes", scopes},
          {"scopes_in_all", scopes_ ? Json(by_size.size()) : Json()}};
}

}  // namespace server
