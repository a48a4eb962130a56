// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace server {

void Histogram::add(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  sum_ns_ += static_cast<std::uint64_t>(duration.count());
}

Histogram::Counts Histogram::counts() const {
  Counts counts{};
  std::copy(counts_.begin(), counts_.end(), counts.begin());
  return counts;
}

double quantile(const Histogram::Counts& counts, double share) {
  const auto& bounds = Histogram::kBounds;
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  if (total == 0) return 0;
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto in_bucket = static_cast<double>(counts[i]);
    if (in_bucket > 0 && below + in_bucket >= share * total) {
      // Durations are assumed to be spread evenly over their bucket, as Prometheus does.
      const double lower = i == 0 ? 0 : bounds[i - 1];
      return lower + (bounds[i] - lower) * (share * total - below) / in_bucket;
    }
    below += in_bucket;
  }
  return bounds.back();
}

void Metrics::count(const std::string& route, int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++responses_[{route, status}];
}

std::map<std::string, std::int64_t> Metrics::predict_counters() const {
  std::map<std::string, std::int64_t> counters = {{"requests", 0}, {"refused", 0}, {"failed", 0}};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [labels, count] : responses_) {
    const auto& [route, status] = labels;
    if (route != "/predict") continue;
    counters["requests"] += count;
    if (status >= 400) counters[status >= 500 ? "failed" : "refused"] += count;
  }
  return counters;
}

std::string Metrics::text() const {
  std::ostringstream text;
  text << "# HELP server_requests_total Responses, by route and HTTP status.\n"
          "# TYPE server_requests_total counter\n";
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [labels, count] : responses_) {
      text << "server_requests_total{route=\"" << labels.first << "\",code=\"" << labels.second
           << "\"} " << count << '\n';
    }
  }
  const std::string name = "server_predict_duration_seconds";
  text << "# HELP " << name << " Handling of POST /predict, failures included.\n"
       << "# TYPE " << name << " histogram\n";
  const Histogram::Counts counts = predict_durations_.counts();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    text << name << "_bucket{le=\"";
    if (i < Histogram::kBounds.size()) {
      text << Histogram::kBounds[i] << "\"} " << total << '\n';
    } else {
      text << "+Inf\"} " << total << '\n';
    }
  }
  text << name << "_sum " << predict_durations_.sum_s() << '\n'
       << name << "_count " << total << '\n';
  return text.str();
}

}  // namespace server
