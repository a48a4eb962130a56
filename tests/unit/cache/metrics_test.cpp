// SPDX-License-Identifier: Apache-2.0
#include "cache/metrics.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace modcache::cache {
namespace {

using ::testing::HasSubstr;

// The samples of a text: name with labels, and value.
std::map<std::string, std::string> samples_of(const std::string& text) {
  std::map<std::string, std::string> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.front() == '#') continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), line.substr(space + 1)).second) << line;
  }
  return samples;
}

TEST(MetricsTest, every_counter_is_there_once_in_its_own_units) {
  Stats stats;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Counter::kCount); ++i) {
    stats.add(static_cast<Counter>(i), static_cast<std::int64_t>(1'000 + i));
  }
  auto samples = samples_of(metrics_text(stats));
  std::set<std::string> values;
  for (const auto& [name, value] : samples) {
    if (name.find("duration") == std::string::npos) values.insert(value);
  }
  EXPECT_EQ(values.size(), static_cast<std::size_t>(Counter::kCount));
  EXPECT_EQ(samples["modcache_hits_total{tier=\"disk\"}"], "1001");
  EXPECT_EQ(samples["modcache_misses_total"], "1003");
  EXPECT_EQ(samples["modcache_run_seconds_total"], "0.001015");
}

TEST(MetricsTest, every_family_is_described_before_its_samples) {
  const std::string text = metrics_text(Stats());
  std::istringstream lines(text);
  std::string family;
  std::set<std::string> families;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# HELP ", 0) == 0) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
      EXPECT_EQ(line.back(), '.') << line;
    } else if (line.rfind("# TYPE ", 0) == 0) {
      const bool is_counter = family.substr(family.size() - 6) == "_total";
      EXPECT_EQ(line, "# TYPE " + family + (is_counter ? " counter" : " histogram"));
    } else {
      EXPECT_EQ(line.rfind(family, 0), 0U) << line;
    }
  }
  EXPECT_EQ(text.back(), '\n');
}

TEST(MetricsTest, buckets_add_up_and_are_in_seconds) {
  Stats stats;
  stats.latencies().hit.observe(std::chrono::microseconds(2));
  stats.latencies().hit.observe(std::chrono::milliseconds(3));
  stats.latencies().hit.observe(std::chrono::minutes(1));
  const auto samples = samples_of(metrics_text(stats));
  const std::string name = "modcache_hit_duration_seconds";
  EXPECT_EQ(samples.at(name + "_bucket{le=\"1e-06\"}"), "0");
  EXPECT_EQ(samples.at(name + "_bucket{le=\"2.5e-06\"}"), "1");
  EXPECT_EQ(samples.at(name + "_bucket{le=\"0.005\"}"), "2");
  EXPECT_EQ(samples.at(name + "_bucket{le=\"10\"}"), "2");
  EXPECT_EQ(samples.at(name + "_bucket{le=\"+Inf\"}"), "3");
  EXPECT_EQ(samples.at(name + "_count"), "3");
  EXPECT_EQ(samples.at(name + "_sum"), "60.003002");
}

TEST(MetricsTest, numbers_never_shrink_whatever_is_reset_or_taken_back) {
  Stats stats;
  stats.add(Counter::kHitsMemory, 5);
  const std::string five = "modcache_hits_total{tier=\"memory\"} 5\n";
  EXPECT_THAT(metrics_text(stats), HasSubstr(five));
  stats.reset();
  EXPECT_EQ(stats.get(Counter::kHitsMemory), 0);
  stats.add(Counter::kHitsMemory, -1);
  EXPECT_THAT(metrics_text(stats), HasSubstr(five));
  stats.add(Counter::kHitsMemory, 3);
  EXPECT_THAT(metrics_text(stats), HasSubstr("modcache_hits_total{tier=\"memory\"} 7\n"));
}

}  // namespace
}  // namespace modcache::cache
