// SPDX-License-Identifier: Apache-2.0
//
// DatabaseCheck: what verifying asks of a directory's database, without changing a byte and without
// its lock, while others may write. Each question is answered from one state of the database.
//
// Not thread-safe. kCorruption from any method: the database is broken.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/directory.h"
#include "store/index/database.h"
#include "store/index/index.h"

namespace modcache::store {

class DatabaseCheck {
 public:
  struct Row {
    std::int64_t context_id = 0;
    std::shared_ptr<const Context> context;  // null: the database does not know it
    std::string key;
    Location location;  // segment 0: the database does not know it
    bool is_same_place(const Row& other) const;
  };
  struct SegmentCount {
    std::uint64_t segment = 0;
    std::int64_t named = 0;    // entries that the segment's row says it has
    std::int64_t entries = 0;  // that there are
  };

  // kNotFound: there is no database. kUnsupportedVersion: a newer one.
  static Result<std::unique_ptr<DatabaseCheck>> open(const Directory& directory,
                                                     std::int64_t patience_ms);

  // Whether what others commit is seen. If not, and somebody does, its answers mean nothing.
  bool sees_others() const { return sees_others_; }

  // Contradictions in the database itself, as sentences; none: it is sound.
  Result<std::vector<std::string>> contradictions();
  Result<std::vector<SegmentCount>> segment_counts();
  Result<Sequence> last_sequence();
  Result<std::int64_t> count_entries();
  Result<std::vector<Clear>> clears();

  // Rows behind `last`, in the order of (context_id, key); fewer than `most` only at the end.
  Result<std::vector<Row>> rows_after(const Row& last, std::size_t most);
  // As it is now.
  Result<std::optional<Row>> row(std::int64_t context_id, std::string_view key);
  Result<std::optional<Row>> row(const Digest128& context, std::string_view key);
  // Those that have entries.
  Result<std::vector<Context>> contexts_in_use();

 private:
  explicit DatabaseCheck(std::unique_ptr<Database> database) : database_(std::move(database)) {}
  Status prepare();
  Result<Row> row_in(const Query& query);
  Result<std::uint64_t> segment_named(std::int64_t id);
  Result<std::shared_ptr<const Context>> context_of(std::int64_t id);
  void forget();

  bool sees_others_ = false;
  std::unique_ptr<Database> database_;
  Statement rows_after_;
  Statement row_;
  Statement row_by_digest_;
  Statement context_;
  Statement segment_;
  // Of one state of the database: numbers are given to others once their owners are removed.
  std::unordered_map<std::int64_t, std::uint64_t> segments_;
  std::unordered_map<std::int64_t, std::shared_ptr<const Context>> contexts_;
};

}  // namespace modcache::store
