// SPDX-License-Identifier: Apache-2.0
//
// DatabaseCheck: the questions that verifying asks a directory's database. Changes no byte and
// takes no lock of the directory, while others may write. Each question is answered from one state
// of the database.
//
// Not thread-safe. Any method may return kCorruption: the database is broken.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "store/directory/directory.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/database.h"
#include "store/segment/location.h"

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
    std::int64_t named = 0;    // the entries that the segment's row claims
    std::int64_t entries = 0;  // the entries that exist
  };

  // kNotFound: there is no database. kUnsupportedVersion: it is of another version.
  static Result<std::unique_ptr<DatabaseCheck>> open(const Directory& directory,
                                                     std::int64_t patience_ms);

  // Returns whether it sees what others commit. If not, its answers mean nothing once somebody
  // writes.
  bool sees_others() const { return sees_others_; }

  // Returns the contradictions in the database, as sentences; none when it is sound.
  Result<std::vector<std::string>> contradictions();
  Result<std::vector<SegmentCount>> segment_counts();
  Result<Sequence> last_sequence();
  Result<std::int64_t> count_entries();
  Result<std::vector<Clear>> clears();

  // Returns the rows after `last`, in the order of (context_id, key); fewer than `most` only at the
  // end.
  Result<std::vector<Row>> rows_after(const Row& last, std::size_t most);
  // Return the current row.
  Result<std::optional<Row>> row(std::int64_t context_id, std::string_view key);
  Result<std::optional<Row>> row(const Digest128& context, std::string_view key);
  // Returns the contexts that have entries.
  Result<std::vector<Context>> contexts_in_use();

 private:
  explicit DatabaseCheck(std::unique_ptr<Database> database) : database_(std::move(database)) {}
  Status prepare();
  Result<Row> row_in(const Query& query);
  Result<std::uint64_t> segment_named(std::int64_t id);
  Result<std::shared_ptr<const Context>> context_of(std::int64_t id);
  // REQUIRES: `query` has the columns of kRowColumns, and runs in a transaction.
  Result<std::vector<Row>> rows_of(Query& query);
  Result<std::optional<Row>> only_row_of(Query& query);

  bool sees_others_ = false;
  std::unique_ptr<Database> database_;
  Statement rows_after_;
  Statement row_;
  Statement row_by_digest_;
  Statement context_;
  Statement segment_;
  // The contexts and segments by their numbers, in the state of the database that was read last.
  std::unordered_map<std::int64_t, std::uint64_t> segments_;
  std::unordered_map<std::int64_t, std::shared_ptr<const Context>> contexts_;
};

}  // namespace modcache::store
