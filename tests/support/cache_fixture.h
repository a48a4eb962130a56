// SPDX-License-Identifier: Apache-2.0
//
// A Cache with texts for values, in a directory of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::testing {

inline const TextFormat& text_format() {
  static const TextFormat format;
  return format;
}

inline cache::ContextPtr context_of(cache::Form form, std::string_view scope = "scope") {
  cache::ContextParts parts;
  parts.scope = scope;
  parts.method = "forward";
  parts.form = form;
  return cache::make_context(parts);
}

// Keys as a call has them, with the settings in force. They borrow the texts.
inline cache::Keys keys_of(cache::Cache& cache, std::string_view key,
                           std::string_view signature = "", std::string_view scope = "scope") {
  cache::Keys keys(context_of(cache::Form::kWhole, scope), key);
  keys.configuration = cache.configuration();
  keys.signature = signature;
  return keys;
}
inline cache::Keys rows_of(cache::Cache& cache, const std::vector<std::string_view>& names,
                           std::string_view signature = "") {
  cache::Keys keys(context_of(cache::Form::kRow), names);
  keys.configuration = cache.configuration();
  keys.signature = signature;
  keys.form = cache::Form::kRow;
  return keys;
}

inline cache::LookupOptions lookup_options(bool may_write = true) {
  cache::LookupOptions options;
  options.may_write = may_write;
  options.reads_values = true;
  return options;
}
// Those of a call that runs what is missing.
inline cache::LookupOptions run_options() {
  cache::LookupOptions options = lookup_options();
  options.will_run = true;
  options.may_sample = true;
  return options;
}

// The text of key i; "<missing>" where it was not found.
inline std::string text_of(const cache::Found& found, std::size_t i = 0) {
  return found.is_found(i) ? text_of(found.entry(i)) : "<missing>";
}

// Looks the key up, and counts its hit.
inline std::string lookup_text(cache::Cache& cache, const cache::Keys& key, bool may_write = true) {
  const cache::Found found = cache.lookup(key, lookup_options(may_write));
  cache.count_hits(key, found, may_write);
  return text_of(found);
}

// A Cache as one process has it; two of them on a directory are as two processes.
class Process {
 public:
  explicit Process(const std::string& directory, const std::string& memory = "1GB")
      : cache_(text_format()) {
    EXPECT_TRUE(configure({{"dir", directory}, {"memory", memory}}).is_ok());
  }
  cache::Cache& cache() { return cache_; }

  cache::Keys keys(std::string_view key, std::string_view signature = "") {
    return keys_of(cache_, key, signature);
  }
  cache::Keys rows(const std::vector<std::string_view>& names, std::string_view signature = "") {
    return rows_of(cache_, names, signature);
  }

  std::string lookup(std::string_view key, std::string_view signature = "", bool may_write = true) {
    return lookup_text(cache_, keys(key, signature), may_write);
  }
  // Where each row was found, and its text: "memory: a", "disk: b", "<missing>". A row that cannot
  // be read is "<refused>".
  std::vector<std::string> lookup_rows(const std::vector<std::string_view>& names,
                                       std::string_view signature = "") {
    const cache::Keys keys = rows(names, signature);
    cache::LookupOptions options;
    options.may_write = true;
    cache::Found found = cache_.lookup(keys, options);
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < keys.size(); ++i) texts.push_back(text_of_row(keys, found, i));
    cache_.count_hits(keys, found, /*may_write=*/true);
    return texts;
  }

  bool store(std::string_view key, const std::string& text, const std::string& signature = "",
             std::optional<std::int64_t> run_us = std::nullopt,
             const cache::StoreOptions& options = {}) {
    const cache::EntryPtr entry = text_entry(text, signature, run_us);
    return cache_.store(keys(key, signature), {&entry, 1}, options) == 1;
  }
  // Pairs of a key and its text. Returns how many were stored.
  std::size_t store_rows(const std::vector<std::pair<std::string_view, std::string>>& texts,
                         const std::string& signature = "", std::int64_t run_us = 0) {
    std::vector<std::string_view> names;
    std::vector<cache::EntryPtr> entries;
    for (const auto& [name, text] : texts) {
      names.push_back(name);
      entries.push_back(text_entry(text, signature, run_us));
    }
    return cache_.store(rows(names, signature), entries);
  }

  bool contains(std::string_view key) { return cache_.contains(keys(key)); }
  std::int64_t stat(const std::string& name) { return cache_.stats().at(name); }
  Status configure(const cache::Options& options) { return cache_.configure(options); }

 protected:
  Process(cache::ConnectRemote connect, const cache::Options& options)
      : cache_(text_format(), fs::posix_file_system(), std::move(connect)) {
    EXPECT_TRUE(configure(options).is_ok());
  }

 private:
  std::string text_of_row(const cache::Keys& keys, cache::Found& found, std::size_t i) {
    if (!found.is_found(i)) return "<missing>";
    if (!found.is_row(i)) return "memory: " + text_of(found.entry(i));
    const std::size_t row = found.row(i);
    EXPECT_EQ(found.rows().header(row).value_header, TextValue::kHeader);
    std::string text(found.rows().payload_size_bytes(row), '?');
    const Status status = found.rows().read(row, text.data());
    if (status.is_ok()) return "disk: " + text;
    cache_.refuse(keys, found, i, status, /*may_write=*/true);
    EXPECT_FALSE(found.is_found(i));
    return "<refused>";
  }

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
