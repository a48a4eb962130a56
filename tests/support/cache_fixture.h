// SPDX-License-Identifier: Apache-2.0
//
// A Cache with texts for values, in a directory of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::testing {

inline const TextFormat& text_format() {
  static const TextFormat format;
  return format;
}

// A Cache as one process has it; two of them on a directory are as two processes.
class Process {
 public:
  explicit Process(const std::string& directory, const std::string& memory = "1GB")
      : cache_(text_format()) {
    EXPECT_TRUE(cache_.configure({{"dir", directory}, {"memory", memory}}).is_ok());
  }
  cache::Cache& cache() { return cache_; }

  std::string lookup(const std::string& key, const std::string& signature = "",
                     bool may_write = true) {
    cache::SingleFlight::Lead lead;
    return text_of(cache_.session()->lookup(request(key, signature), may_write, lead));
  }
  bool store(const std::string& key, const std::string& text, const std::string& signature = "",
             std::optional<std::int64_t> run_us = std::nullopt) {
    return cache_.session()->store(request(key, signature), text_entry(text, signature, run_us));
  }
  bool contains(const std::string& key) { return cache_.session()->contains(request(key)); }
  std::int64_t stat(const std::string& name) { return cache_.stats().at(name); }
  Status configure(const cache::Options& options) { return cache_.configure(options); }

  static cache::Request request(std::string_view key, std::string_view signature = "") {
    static const cache::ContextPtr context = [] {
      cache::ContextParts parts;
      parts.scope = "scope";
      parts.method = "forward";
      return cache::make_context(parts);
    }();
    return {context, key, signature};
  }

 private:
  cache::Cache cache_;
};

class CacheTest : public ::testing::Test {
 protected:
  // Log settings are the process's own.
  ~CacheTest() override { set_log_level(LogLevel::kWarning); }

  TemporaryDirectory directory_;
  const std::string dir_ = directory_ / "cache";
  Process here_{dir_};
};

}  // namespace modcache::testing
