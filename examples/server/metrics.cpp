// SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace server {

void Histogram::add(std::chrono::nanoseconds took) {
  const double seconds = std::chrono::duration<double>(took).count();
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  nanoseconds_ += static_cast<std::uint64_t>(took.count());
}

Histogram::Counts Histogram::counts() const {
  Counts counts{};
  std::transform(counts_.begin(), counts_.end(), counts.begin(),
                 [](const auto& count) { return count.load(); });
  return counts;
}

double quantile(const Histogram::Counts& counts, double share) {
  const auto& bounds = Histogram::kBounds;
  const double all =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
  if (all == 0) return 0;
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0 && below + here >= share * all) {
      // As Prometheus does: those of a bucket are taken to lie evenly in it.
      const double from = i == 0 ? 0 : bounds[i - 1];
      return from + (bounds[i] - from) * (share * all - below) / here;
    }
    below += here;
  }
  return bounds.back();
}

void Metrics::count(const std::string& route, int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++answers_[{route, status}];
}

Metrics::Answers Metrics::answers() const {
  Answers found;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [of, count] : answers_) {
    const auto& [route, status] = of;
    if (route != "/predict") continue;
    found.all += count;
    if (status >= 500) found.failed += count;
    if (status >= 400 && status < 500) found.refused += count;
  }
  return found;
}

std::string Metrics::text(const Connections& connections) const {
  std::ostringstream text;
  const auto title = [&](const char* name, const char* type, const char* help) {
    text << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  };
  const auto counter = [&](const char* name, std::uint64_t count, const char* help) {
    title(name, "counter", help);
    text << name << ' ' << count << '\n';
  };

  title("server_requests_total", "counter", "Answers, by route and status of HTTP.");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [of, count] : answers_) {
      text << "server_requests_total{route=\"" << of.first << "\",code=\"" << of.second << "\"} "
           << count << '\n';
    }
  }
  const char* const durations = "server_predict_duration_seconds";
  title(durations, "histogram",
        "From the whole body of POST /predict to its answer, failures included.");
  const Histogram::Counts counts = predict_durations_.counts();
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    so_far += counts[i];
    text << durations << "_bucket{le=\"";
    if (i < Histogram::kBounds.size()) {
      text << Histogram::kBounds[i];
    } else {
      text << "+Inf";
    }
    text << "\"} " << so_far << '\n';
  }
  text << durations << "_sum " << predict_durations_.seconds() << '\n'
       << durations << "_count " << so_far << '\n';
  counter("server_received_bytes_total", received_bytes_, "Bytes of the bodies of requests.");
  counter("server_connections_accepted_total", connections.accepted, "Connections.");
  counter("server_connections_closed_total", connections.closed, "Connections that ended.");
  counter("server_connections_refused_total", connections.refused,
          "Connections above the limit, which found no place and got 503.");
  return text.str();
}

}  // namespace server
