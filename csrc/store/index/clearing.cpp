// SPDX-License-Identifier: Apache-2.0
#include "store/index/clearing.h"

#include <utility>

#include "store/entry/scope_filter.h"
#include "store/index/database.h"
#include "store/index/tables.h"

namespace modcache::store {
namespace {

// The most rows that a clear names one by one, which takes some megabytes.
constexpr std::size_t kMostRemovedRows = 50'000;

// Returns the smallest text greater than all that begin with `prefix`; nothing when there is none.
std::optional<std::string> end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::nullopt;
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

// An SQL condition for the rows that a clear covers. The clear must outlive it.
class Condition {
 public:
  explicit Condition(const Clear& clear)
      : filter_(clear.filter),
        sequence_(static_cast<std::int64_t>(clear.sequence)),
        range_(filter_.scope),
        is_one_key_(clear.context != Digest128{}),
        context_(clear.context.bytes()),
        end_(is_one_key_ ? std::nullopt : end_of_prefix(filter_.key_prefix)) {
    if (is_one_key_) where_ += " AND context_id=(SELECT id FROM contexts WHERE digest=?)";
    if (has_range()) {
      where_ += " AND context_id IN (SELECT id FROM contexts WHERE substr(description,1,?)=?)";
    }
    if (has_scope()) where_ += " AND context_id IN (SELECT id FROM contexts WHERE scope=?)";
    if (has_prefix()) where_ += is_one_key_ ? " AND key=?" : " AND key>=?";
    if (end_) where_ += " AND key<?";
    if (filter_.older_than_us != 0) where_ += " AND stored_at_us<?";
  }

  const std::string& where() const { return where_; }
  void bind(Query& query) const {
    query.bind(sequence_);
    if (is_one_key_) query.bind_blob(context_);
    if (has_range()) {
      query.bind(static_cast<std::int64_t>(range_.description_prefix.size()));
      query.bind_blob(range_.description_prefix);
    }
    if (has_scope()) query.bind_blob(range_.scope);
    if (has_prefix()) query.bind_blob(filter_.key_prefix);
    if (end_) query.bind_blob(*end_);
    if (filter_.older_than_us != 0) query.bind(filter_.older_than_us);
  }

 private:
  // Where the digest is given it decides alone.
  bool has_range() const { return !is_one_key_ && !range_.description_prefix.empty(); }
  bool has_scope() const { return !is_one_key_ && !range_.scope.empty(); }
  bool has_prefix() const { return !filter_.key_prefix.empty(); }

  const ClearFilter& filter_;
  const std::int64_t sequence_;
  const ScopeFilter range_;
  const bool is_one_key_;
  const std::string context_;
  const std::optional<std::string> end_;
  std::string where_ = " WHERE sequence<?";
};

// Returns the ids of the segments with such rows, and how many rows each has.
Result<std::vector<std::pair<std::int64_t, std::int64_t>>> counts_by_segment(
    Database& database, const Condition& condition) {
  Query query(database, "SELECT segment_id, count(*) FROM entries" + condition.where() +
                            " GROUP BY segment_id");
  condition.bind(query);
  std::vector<std::pair<std::int64_t, std::int64_t>> counts;
  MODCACHE_RETURN_IF_ERROR(query.each([&] {
    counts.emplace_back(query.number(0), query.number(1));
    return Status::ok();
  }));
  return counts;
}

Status name_rows(Database& database, const Condition& condition, RemovedRows& removed) {
  Query query(database,
              "SELECT digest, key, sequence FROM entries JOIN contexts ON contexts.id=context_id" +
                  condition.where() + " LIMIT " + std::to_string(kMostRemovedRows + 1));
  condition.bind(query);
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto digest, digest_in(query, 0));
    removed.rows.push_back(
        {digest, std::string(query.bytes(1)), static_cast<Sequence>(query.number(2))});
    return Status::ok();
  }));
  if (removed.rows.size() <= kMostRemovedRows) return Status::ok();
  removed.rows.clear();
  removed.is_complete = false;
  return Status::ok();
}

Result<std::int64_t> remove_all(Tables& tables) {
  MODCACHE_ASSIGN_OR_RETURN(auto count, tables.count_entries());
  MODCACHE_RETURN_IF_ERROR(tables.database().execute(
      "DELETE FROM entries; DELETE FROM contexts; UPDATE segments SET live_entries=0"));
  return count;
}

// Returns the number of rows removed.
Result<std::int64_t> remove_cleared(Tables& tables, const Clear& clear, RemovedRows* rows) {
  const bool is_one_key = clear.context != Digest128{};
  if (clear.filter.covers_everything() && !is_one_key) {
    MODCACHE_ASSIGN_OR_RETURN(auto last, tables.last_sequence());
    // Without a condition SQLite frees the table's pages as a whole, whatever the number of rows.
    if (last < clear.sequence) {
      if (rows != nullptr) rows->is_complete = false;
      return remove_all(tables);
    }
  }
  Database& database = tables.database();
  const Condition cleared(clear);
  if (rows != nullptr) MODCACHE_RETURN_IF_ERROR(name_rows(database, cleared, *rows));
  MODCACHE_ASSIGN_OR_RETURN(auto counts, counts_by_segment(database, cleared));
  std::int64_t removed = 0;
  for (const auto& [segment, count] : counts) {
    MODCACHE_RETURN_IF_ERROR(tables.add_live_entries(segment, -count));
    removed += count;
  }
  Query query(database, "DELETE FROM entries" + cleared.where());
  cleared.bind(query);
  MODCACHE_RETURN_IF_ERROR(query.run());
  return removed;
}

Status remember_clear(Database& database, const Clear& clear) {
  if (clear.is_narrow()) return Status::ok();
  const auto sequence = static_cast<std::int64_t>(clear.sequence);
  // A clear of everything makes all earlier ones superfluous, which bounds the table in practice.
  if (clear.filter.covers_everything()) {
    Query query(database, "DELETE FROM clears WHERE sequence<?");
    MODCACHE_RETURN_IF_ERROR(query.bind(sequence).run());
  }
  Query query(database, "INSERT OR REPLACE INTO clears VALUES(?,?,?)");
  query.bind(sequence).bind_blob(clear.filter.scope).bind_blob(clear.filter.key_prefix);
  return query.run();
}

Result<std::vector<SegmentFacts>> segment_facts(Database& database) {
  Query query(database, "SELECT name, live_entries, tombstones FROM segments");
  std::vector<SegmentFacts> facts;
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto id, segment_named(query.bytes(0)));
    facts.push_back({id, query.number(1), query.number(2)});
    return Status::ok();
  }));
  return facts;
}

}  // namespace

Result<std::int64_t> clear_rows(Index& index, const Clear& clear, const SegmentPlanner& plan,
                                RemovedRows* rows) {
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables->begin_writing());
  MODCACHE_ASSIGN_OR_RETURN(auto removed, remove_cleared(*tables, clear, rows));
  MODCACHE_RETURN_IF_ERROR(remember_clear(tables->database(), clear));
  MODCACHE_RETURN_IF_ERROR(tables->raise_last_sequence(clear.sequence));
  MODCACHE_ASSIGN_OR_RETURN(auto facts, segment_facts(tables->database()));
  MODCACHE_ASSIGN_OR_RETURN(auto planned, plan(facts));
  for (const std::uint64_t segment : planned.forgotten) {
    MODCACHE_RETURN_IF_ERROR(tables->forget_segment(segment));
  }
  const auto with_tombstone = planned.with_tombstone;
  if (with_tombstone) MODCACHE_RETURN_IF_ERROR(tables->add_tombstone(*with_tombstone));
  MODCACHE_RETURN_IF_ERROR(transaction.commit());
  return removed;
}

Status restore_clears(Index& index, std::uint64_t segment, const std::vector<Clear>& clears) {
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables->begin_writing());
  for (const Clear& clear : clears) {
    // Narrow clears are applied once all rows are there, as `clears` does not store them for rows
    // that come later.
    if (!clear.is_narrow()) {
      MODCACHE_RETURN_IF_ERROR(remove_cleared(*tables, clear, nullptr).status());
    }
    MODCACHE_RETURN_IF_ERROR(remember_clear(tables->database(), clear));
    MODCACHE_RETURN_IF_ERROR(tables->raise_last_sequence(clear.sequence));
    MODCACHE_RETURN_IF_ERROR(tables->add_tombstone(segment));
  }
  return transaction.commit();
}

Status apply_narrow_clears(Index& index, const std::vector<Clear>& clears) {
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables->begin_writing());
  for (const Clear& clear : clears) {
    MODCACHE_RETURN_IF_ERROR(remove_cleared(*tables, clear, nullptr).status());
  }
  return transaction.commit();
}

}  // namespace modcache::store
