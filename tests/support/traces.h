// SPDX-License-Identifier: Apache-2.0
//
// Traces: in which order samples are asked for, as numbers, the same on every machine. `room` is
// how many of them a tier holds at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace modcache::testing {

using Trace = std::vector<std::uint32_t>;

// std::shuffle and std::uniform_real_distribution differ between standard libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
  }
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(next() % end); }
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// A hash of a sample's number, as addresses are of keys.
inline std::uint64_t hash_of(std::uint32_t sample) { return Random(sample).next(); }

struct Samples {
  std::uint32_t first = 0;
  std::size_t count = 0;
};

inline void add_epoch(Samples samples, Trace& trace) {
  for (std::size_t i = 0; i < samples.count; ++i) {
    trace.push_back(samples.first + static_cast<std::uint32_t>(i));
  }
}

inline void add_shuffled_epoch(Samples samples, Random& random, Trace& trace) {
  const std::size_t begin = trace.size();
  add_epoch(samples, trace);
  for (std::size_t i = samples.count; i > 1; --i) {
    std::swap(trace[begin + i - 1], trace[begin + random.below(i)]);
  }
}

inline Trace sequential_epochs(Samples samples, std::size_t epochs) {
  Trace trace;
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) add_epoch(samples, trace);
  return trace;
}

inline Trace shuffled_epochs(Samples samples, std::size_t epochs, std::uint64_t seed) {
  Trace trace;
  Random random(seed);
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) add_shuffled_epoch(samples, random, trace);
  return trace;
}

// Sample number i + 1 is asked for 1 / (i + 1) ^ exponent times as often as the first.
inline Trace zipf(Samples samples, double exponent, std::size_t lookups, std::uint64_t seed) {
  std::vector<double> below;
  double sum = 0;
  for (std::size_t i = 0; i < samples.count; ++i) {
    sum += 1 / std::pow(static_cast<double>(i + 1), exponent);
    below.push_back(sum);
  }
  Random random(seed);
  Trace trace;
  for (std::size_t i = 0; i < lookups; ++i) {
    const auto drawn = std::lower_bound(below.begin(), below.end(), random.fraction() * sum);
    trace.push_back(samples.first + static_cast<std::uint32_t>(drawn - below.begin()));
  }
  return trace;
}

// A scan of keys that never come again, as long as 16 % of the entries, after each 40 % of them.
inline Trace zipf_with_scans(std::size_t entries) {
  const Trace usual = zipf({0, entries}, 0.9, 3 * entries, 3);
  const std::size_t scan = entries * 4 / 25;
  auto next_of_scan = static_cast<std::uint32_t>(10 * entries);
  Trace trace;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    trace.push_back(usual[i]);
    if ((i + 1) % (entries * 2 / 5) != 0) continue;
    add_epoch({next_of_scan, scan}, trace);
    next_of_scan += static_cast<std::uint32_t>(scan);
  }
  return trace;
}

// Three datasets one after another, five epochs over each.
inline Trace phases(std::size_t entries, bool is_shuffled) {
  Trace trace;
  Random random(6);
  for (std::uint32_t phase = 0; phase < 3; ++phase) {
    const Samples samples{static_cast<std::uint32_t>(phase * entries), entries};
    for (std::size_t epoch = 0; epoch < 5; ++epoch) {
      is_shuffled ? add_shuffled_epoch(samples, random, trace) : add_epoch(samples, trace);
    }
  }
  return trace;
}

// Ten sets one after another, each four fifths of the room, looked up at random.
inline Trace moving_set(std::size_t room) {
  Trace trace;
  Random random(8);
  for (std::uint32_t set = 0; set < 10; ++set) {
    for (std::size_t i = 0; i < 10 * room; ++i) {
      trace.push_back(static_cast<std::uint32_t>(set * room + random.below(room * 4 / 5)));
    }
  }
  return trace;
}

struct NamedTrace {
  std::string name;
  Trace trace;
  std::size_t counted_from = 0;  // earlier lookups only fill the tier
};

// Thirty epochs over an older dataset, which fill the tier, and then ten over another one.
inline NamedTrace after_another_project(std::size_t entries) {
  NamedTrace named{"after another project", shuffled_epochs({0, entries}, 30, 9)};
  named.counted_from = named.trace.size();
  const Samples samples{static_cast<std::uint32_t>(entries), entries};
  const Trace current = shuffled_epochs(samples, 10, 10);
  named.trace.insert(named.trace.end(), current.begin(), current.end());
  return named;
}

inline std::vector<NamedTrace> traces_of(std::size_t entries, std::size_t room) {
  return {{"cyclic", sequential_epochs({0, entries}, 10)},
          {"shuffled epochs", shuffled_epochs({0, entries}, 10, 7)},
          {"Zipf", zipf({0, entries}, 0.9, 3 * entries, 3)},
          {"Zipf with scans", zipf_with_scans(entries)},
          {"phases", phases(entries, false)},
          {"phases, shuffled", phases(entries, true)},
          after_another_project(entries),
          {"moving working set", moving_set(room)}};
}

// Returns the hit rate of Belady's policy, which knows the future and may also decline to store a
// new entry. No policy can have a larger one.
inline double best_possible(const NamedTrace& named, std::size_t room) {
  const Trace& trace = named.trace;
  constexpr std::size_t kNever = ~std::size_t{0};
  std::vector<std::size_t> next(trace.size(), kNever);
  std::unordered_map<std::uint32_t, std::size_t> last;
  for (std::size_t i = trace.size(); i-- > 0;) {
    if (const auto later = last.find(trace[i]); later != last.end()) next[i] = later->second;
    last[trace[i]] = i;
  }
  // A heap of when each kept sample is asked for again; those asked for since are skipped.
  std::vector<std::size_t> heap;
  std::unordered_map<std::uint32_t, std::size_t> kept;
  std::size_t hits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const std::size_t found = kept.erase(trace[i]);
    if (i >= named.counted_from) hits += found;
    if (next[i] == kNever) continue;
    kept[trace[i]] = next[i];
    heap.push_back(next[i]);
    std::push_heap(heap.begin(), heap.end());
    while (kept.size() > room) {
      const std::size_t latest = heap.front();
      std::pop_heap(heap.begin(), heap.end());
      heap.pop_back();
      const auto entry = kept.find(trace[latest]);
      if (entry != kept.end() && entry->second == latest) kept.erase(entry);
    }
  }
  return static_cast<double>(hits) / static_cast<double>(trace.size() - named.counted_from);
}

}  // namespace modcache::testing
