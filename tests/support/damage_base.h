// SPDX-License-Identifier: Apache-2.0
//
// A directory that was made once, to be copied and damaged: with entries that were replaced,
// entries that were cleared, several segments, and rows that are only in the log.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/directory/notes.h"
#include "store/index/database.h"
#include "store/segment/record.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::testing {

using store::ClearFilter;
using store::Context;
using store::Database;
using store::Directory;
using store::Query;
using store::Store;
using store::StoreOptions;

// What the directory must give for a key: its value, or nothing. Also where its record lies.
struct ExpectedEntry {
  Context context;
  std::string key;
  std::string value;  // empty: it was cleared
  std::string file;
  std::uint64_t offset = 0;
  std::string row;     // all of it as text
  std::string record;  // as bytes, without the padding behind them
  std::string segment_header;
};

class DamageBase {
 public:
  // Longer keys make the database too large to be read whole when it is opened.
  DamageBase(std::size_t key_size, bool is_closed) : key_size_(key_size) {
    StoreOptions options;
    options.directory = made();
    // A segment is a sixteenth of it.
    options.disk_budget_bytes = 16 * (key_size == 0 ? 48 : 320) * 1024;
    auto store = open_store(options);
    fill(*store, 0);
    std::filesystem::copy(made(), older(), std::filesystem::copy_options::recursive);
    fill(*store, 1);
    EXPECT_TRUE(
        store::keep_note(Directory(fs::posix_file_system(), made()), "about", "a text").is_ok());
    if (is_closed) store = nullptr;
    // While it is open its last rows are only in the log.
    std::filesystem::copy(made(), path(), std::filesystem::copy_options::recursive);
    learn_places();
  }

  std::string path() const { return directory_ / "base"; }
  std::string older() const { return directory_ / "older"; }
  const std::vector<ExpectedEntry>& expected() const { return expected_; }
  // All rows as the database of `directory` gives them; nullopt where a question failed.
  static std::optional<std::string> row_of(Database& database, const ExpectedEntry& entry) {
    auto statement = database.prepare(
        "SELECT s.name||' '||e.offset||' '||e.header_size||' '||e.payload_size||' '||e.sequence"
        " FROM contexts c JOIN entries e ON e.context_id=c.id JOIN segments s ON s.id=e.segment_id"
        " WHERE c.digest=? AND e.key=?");
    if (!statement.is_ok()) return std::nullopt;
    const std::string digest = entry.context.digest.bytes();
    Query query(statement.value());
    auto has_row = query.bind_blob(digest).bind_blob(entry.key).step();
    if (!has_row.is_ok()) return std::nullopt;
    return has_row.value() ? std::string(query.bytes(0)) : "";
  }

 private:
  std::string made() const { return directory_ / "made"; }
  std::string key(const std::string& name) const {
    return name + std::string(key_size_ > name.size() ? key_size_ - name.size() : 0, '.');
  }

  // In the second round some entries are replaced and some cleared, and others are added.
  void fill(Store& store, int round) {
    const Context contexts[] = {context_named("one"), context_named("one", "other"),
                                context_named("two")};
    for (int i = 0; i < 60; ++i) {
      const bool is_replaced = round == 1 && i % 5 == 0;
      const std::string name = (round == 0 || is_replaced ? "a" : "b") + std::to_string(i) + "/";
      const std::size_t size = i % 20 == 7 ? 20000 : static_cast<std::size_t>(i) * 37;
      std::string value = std::to_string(round) + name + std::string(size, 'v');
      const Context& context = contexts[i % 3];
      ASSERT_TRUE(put(store, context, key(name), value).is_ok());
      remember(context, key(name), std::move(value));
      const bool is_batch_full = i % 20 == 19;
      ASSERT_TRUE(!is_batch_full || store.flush().is_ok());
    }
    if (round == 0) return;
    ASSERT_TRUE(store.flush().is_ok());
    clear(store, {"one", "a2"});
    clear(store, {"two", "b1"});
    const std::string name = key("a20/");
    ASSERT_TRUE(put(store, contexts[2], name, "again").is_ok());
    remember(contexts[2], name, "again");
    ASSERT_TRUE(store.flush().is_ok());
  }
  void remember(const Context& context, const std::string& key, std::string value) {
    for (ExpectedEntry& entry : expected_) {
      if (entry.key != key || entry.context.digest != context.digest) continue;
      entry.value = std::move(value);
      return;
    }
    ExpectedEntry entry;
    entry.context = context;
    entry.key = key;
    entry.value = std::move(value);
    expected_.push_back(std::move(entry));
  }
  void clear(Store& store, const ClearFilter& filter) {
    ASSERT_TRUE(store.clear(filter).is_ok());
    for (ExpectedEntry& entry : expected_) {
      if (entry.context.scope == filter.scope && entry.key.rfind(filter.key_prefix, 0) == 0) {
        entry.value.clear();
      }
    }
  }
  void learn_places() {
    std::filesystem::copy(path(), directory_ / "asked", std::filesystem::copy_options::recursive);
    auto database = Database::open(fs::posix_file_system(), directory_ / "asked/index.sqlite",
                                   Database::Mode::kWrite, 0);
    ASSERT_TRUE(database.is_ok());
    for (ExpectedEntry& entry : expected_) {
      if (entry.value.empty()) continue;
      entry.row = row_of(*database.value(), entry).value();
      ASSERT_NE(entry.row, "") << entry.key;
      entry.file = "segments/" + entry.row.substr(0, 16) + ".seg";
      entry.offset = std::stoull(entry.row.substr(17));
      const std::string bytes = file_bytes(path() + "/" + entry.file);
      const auto head = store::peek_record_head(std::string_view(bytes).substr(entry.offset));
      const auto size = head.value().payload_offset() + head.value().payload_size_bytes;
      entry.record = bytes.substr(entry.offset, size);
      entry.segment_header = bytes.substr(0, store::kSegmentHeaderSizeBytes);
    }
  }

  const std::size_t key_size_;
  TemporaryDirectory directory_;
  std::vector<ExpectedEntry> expected_;
};

}  // namespace modcache::testing
