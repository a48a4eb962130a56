// SPDX-License-Identifier: Apache-2.0
#include "cache/metrics.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace modcache::cache {
namespace {

// A line of a family: its labels, and what it counts.
struct Series {
  std::string_view labels;
  Counter counter = Counter::kCount;
};

struct Family {
  std::string_view name;
  std::string_view help;
  std::array<Series, 8> series;  // those with a counter of kCount are none
  double unit = 1;
};

constexpr double kMicrosecond = 1e-6;

constexpr Family one(std::string_view name, std::string_view help, Counter counter,
                     double unit = 1) {
  return {name, help, {Series{"", counter}}, unit};
}

constexpr std::array<Family, 17> kFamilies{
    Family{"modcache_hits_total",
           "Keys that were found, by the tier that had them.",
           {Series{"tier=\"memory\"", Counter::kHitsMemory},
            Series{"tier=\"disk\"", Counter::kHitsDisk},
            Series{"tier=\"remote\"", Counter::kHitsRemote}}},
    one("modcache_misses_total", "Keys that were looked up, not found, and run.", Counter::kMisses),
    one("modcache_stored_total", "Results that a tier took.", Counter::kStored),
    Family{"modcache_bypassed_total",
           "Results that were not cached, by the cause.",
           {Series{"cause=\"off\"", Counter::kBypassedOff},
            Series{"cause=\"grad\"", Counter::kBypassedGrad},
            Series{"cause=\"impure\"", Counter::kBypassedImpure},
            Series{"cause=\"type\"", Counter::kBypassedType},
            Series{"cause=\"rows\"", Counter::kBypassedRows},
            Series{"cause=\"identity\"", Counter::kBypassedIdentity},
            Series{"cause=\"verify\"", Counter::kBypassedVerify}}},
    one("modcache_key_conflicts_total",
        "Keys that came with another input than their entry was computed from.",
        Counter::kKeyConflicts),
    one("modcache_verified_total", "Stored values that were compared with a fresh result.",
        Counter::kVerified),
    one("modcache_verify_differences_total",
        "Stored values that differed from what the module returned anew.",
        Counter::kVerifyDifferences),
    one("modcache_evicted_total", "Entries that a full tier let go.", Counter::kEvicted),
    one("modcache_not_kept_total", "Results that no tier had room for.", Counter::kNotKept),
    one("modcache_corrupt_total", "Entries that failed a check; each was a miss.",
        Counter::kCorrupt),
    one("modcache_errors_total", "Failures of the cache; no call failed for them.",
        Counter::kErrors),
    one("modcache_run_seconds_total", "Time that modules ran on misses.", Counter::kRunUs,
        kMicrosecond),
    one("modcache_saved_seconds_total", "Time that the runs had taken whose results were found.",
        Counter::kSavedUs, kMicrosecond),
    one("modcache_hit_bytes_total", "Bytes of the values that were found.", Counter::kHitBytes),
    one("modcache_stored_bytes_total", "Bytes of the values that a tier took.",
        Counter::kStoredBytes),
    one("modcache_remote_stored_total", "Entries that the server of the remote tier took.",
        Counter::kRemoteStored),
    one("modcache_remote_dropped_total", "Entries that were not written to that server.",
        Counter::kRemoteDropped),
};

// The shortest text that reads back as the same number, in every locale.
std::string text_of_number(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end.ptr};
}

void add_head(std::string_view name, std::string_view help, std::string_view type,
              std::string& text) {
  text.append("# HELP ").append(name).append(" ").append(help).append("\n");
  text.append("# TYPE ").append(name).append(" ").append(type).append("\n");
}

void add_line(std::string_view name, std::string_view labels, const std::string& number,
              std::string& text) {
  text.append(name);
  if (!labels.empty()) text.append("{").append(labels).append("}");
  text.append(" ").append(number).append("\n");
}

void add_family(const Family& family, const Stats& stats, std::string& text) {
  add_head(family.name, family.help, "counter", text);
  for (const Series& series : family.series) {
    if (series.counter == Counter::kCount) continue;
    const std::int64_t count = stats.ever(series.counter);
    add_line(family.name, series.labels,
             family.unit == 1 ? std::to_string(count)
                              : text_of_number(static_cast<double>(count) * family.unit),
             text);
  }
}

void add_histogram(const std::string& name, std::string_view help,
                   const LatencyHistogram& histogram, std::string& text) {
  constexpr double kNanosecond = 1e-9;
  const LatencyHistogram::Snapshot taken = histogram.snapshot();
  add_head(name, help, "histogram", text);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < taken.counts.size(); ++i) {
    count += taken.counts[i];
    const std::string bound =
        i < LatencyHistogram::kBoundsNs.size()
            ? text_of_number(static_cast<double>(LatencyHistogram::kBoundsNs[i]) / 1e9)
            : "+Inf";
    add_line(name + "_bucket", "le=\"" + bound + "\"", std::to_string(count), text);
  }
  add_line(name + "_sum", "", text_of_number(static_cast<double>(taken.sum_ns) * kNanosecond),
           text);
  add_line(name + "_count", "", std::to_string(count), text);
}

}  // namespace

std::string metrics_text(const Stats& stats) {
  std::string text;
  for (const Family& family : kFamilies) add_family(family, stats, text);
  const Latencies& latencies = stats.latencies();
  add_histogram("modcache_hit_duration_seconds",
                "Look-ups that found all they asked for; every 16th is timed and stands for 16.",
                latencies.hit, text);
  add_histogram("modcache_miss_duration_seconds",
                "Calls that ran their module, from the look-up to their end.", latencies.miss,
                text);
  add_histogram("modcache_run_duration_seconds", "Runs of modules on misses.", latencies.run, text);
  return text;
}

}  // namespace modcache::cache
