// SPDX-License-Identifier: Apache-2.0
//
// The half of Index that removes many rows at once.
#include <utility>

#include "store/directory.h"
#include "store/index/index.h"
#include "store/index/index_statements.h"
#include "store/scope_filter.h"

namespace modcache::store {
namespace {

// What a clear names one by one: some megabytes.
constexpr std::size_t kMostRemovedRows = 50'000;

// The smallest bytes that come after all that begin with `prefix`; none when there are none.
std::optional<std::string> end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::nullopt;
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

// Rows of a context's digest, a key and a sequence.
Status name_rows(Query& query, RemovedRows& removed) {
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) break;
    const std::string_view digest = query.bytes(0);
    if (digest.size() != 16) return Status::corruption("a context has no digest");
    removed.rows.push_back({Digest128::from_bytes(digest), std::string(query.bytes(1)),
                            static_cast<Sequence>(query.number(2))});
  }
  if (removed.rows.size() <= kMostRemovedRows) return Status::ok();
  removed.rows.clear();
  removed.is_complete = false;
  return Status::ok();
}

// Which rows a clear is about, as SQL. The clear must outlive it.
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
  // The digest says enough where it is there.
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

// The database's numbers of segments, and how many rows each has of them.
Result<std::vector<std::pair<std::int64_t, std::int64_t>>> counts_by_segment(
    Database& database, const Condition& condition) {
  auto statement = database.prepare("SELECT segment_id, count(*) FROM entries" + condition.where() +
                                    " GROUP BY segment_id");
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  condition.bind(query);
  std::vector<std::pair<std::int64_t, std::int64_t>> counts;
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return counts;
    counts.emplace_back(query.number(0), query.number(1));
  }
}

}  // namespace

Result<std::int64_t> Index::clear(const Clear& clear, const Plan& plan, RemovedRows* rows) {
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  auto removed = remove_cleared(clear, rows);
  if (!removed.is_ok()) return removed.status();
  MODCACHE_RETURN_IF_ERROR(remember_clear(clear));
  MODCACHE_RETURN_IF_ERROR(raise_last_sequence(clear.sequence));
  auto facts = segment_facts();
  if (!facts.is_ok()) return facts.status();
  auto segment_plan = plan(facts.value());
  if (!segment_plan.is_ok()) return segment_plan.status();
  MODCACHE_RETURN_IF_ERROR(apply_plan(segment_plan.value()));
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return removed;
}

Result<std::int64_t> Index::remove_all() {
  auto count = database_->query_number("SELECT coalesce(sum(live_entries), 0) FROM segments");
  if (!count.is_ok()) return count.status();
  MODCACHE_RETURN_IF_ERROR(database_->execute(
      "DELETE FROM entries; DELETE FROM contexts; UPDATE segments SET live_entries=0"));
  return count;
}

Result<std::int64_t> Index::remove_cleared(const Clear& clear, RemovedRows* rows) {
  const ClearFilter& filter = clear.filter;
  const bool is_one_key = clear.context != Digest128{};
  if (filter.covers_everything() && !is_one_key) {
    auto last = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
    if (!last.is_ok()) return last.status();
    // Without a condition SQLite drops the table's pages whole, however many rows there are.
    if (static_cast<Sequence>(last.value()) < clear.sequence) {
      if (rows != nullptr) rows->is_complete = false;
      return remove_all();
    }
  }
  const Condition cleared(clear);
  if (rows != nullptr) {
    auto statement = database_->prepare(
        "SELECT digest, key, sequence FROM entries JOIN contexts ON contexts.id=context_id" +
        cleared.where() + " LIMIT " + std::to_string(kMostRemovedRows + 1));
    if (!statement.is_ok()) return statement.status();
    Query query(statement.value());
    cleared.bind(query);
    MODCACHE_RETURN_IF_ERROR(name_rows(query, *rows));
  }
  auto counts = counts_by_segment(*database_, cleared);
  if (!counts.is_ok()) return counts.status();
  std::int64_t removed = 0;
  for (const auto& [segment, count] : counts.value()) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, -count));
    removed += count;
  }
  auto statement = database_->prepare("DELETE FROM entries" + cleared.where());
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  cleared.bind(query);
  MODCACHE_RETURN_IF_ERROR(query.run());
  return removed;
}

Status Index::remember_clear(const Clear& clear) {
  if (clear.is_narrow()) return Status::ok();
  const auto sequence = static_cast<std::int64_t>(clear.sequence);
  // A clear of everything makes all earlier ones superfluous, which bounds the table in practice.
  if (clear.filter.covers_everything()) {
    auto statement = database_->prepare("DELETE FROM clears WHERE sequence<?");
    if (!statement.is_ok()) return statement.status();
    MODCACHE_RETURN_IF_ERROR(Query(statement.value()).bind(sequence).run());
  }
  auto statement = database_->prepare("INSERT OR REPLACE INTO clears VALUES(?,?,?)");
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  return query.bind(sequence)
      .bind_blob(clear.filter.scope)
      .bind_blob(clear.filter.key_prefix)
      .run();
}

Status Index::apply_plan(const SegmentPlan& plan) {
  {
    auto statement = database_->prepare("DELETE FROM segments WHERE name=?");
    if (!statement.is_ok()) return statement.status();
    for (const std::uint64_t segment : plan.forgotten) {
      const std::string name = segment_name(segment);
      MODCACHE_RETURN_IF_ERROR(Query(statement.value()).bind_text(name).run());
      MODCACHE_RETURN_IF_ERROR(database_->execute(std::string("DELETE FROM meta WHERE name='") +
                                                  kLastOffsetName + name + "'"));
    }
  }
  if (!plan.with_tombstone) return Status::ok();
  auto id = segment_id(*plan.with_tombstone);
  if (!id.is_ok()) return id.status();
  auto statement = database_->prepare("UPDATE segments SET tombstones=tombstones+1 WHERE id=?");
  if (!statement.is_ok()) return statement.status();
  return Query(statement.value()).bind(id.value()).run();
}

Result<std::vector<SegmentFacts>> Index::segment_facts() {
  auto statement = database_->prepare("SELECT name, live_entries, tombstones FROM segments");
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  std::vector<SegmentFacts> facts;
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return facts;
    const auto id = parse_segment_name(std::string(query.bytes(0)));
    if (!id) return Status::corruption("the database names an impossible segment");
    facts.push_back({*id, query.number(1), query.number(2)});
  }
}

Status Index::restore_clears(std::uint64_t segment, const std::vector<Clear>& clears) {
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  for (const Clear& clear : clears) {
    // The narrow ones wait until all rows are there: `clears` would not keep them for those.
    if (!clear.is_narrow()) MODCACHE_RETURN_IF_ERROR(remove_cleared(clear, nullptr).status());
    MODCACHE_RETURN_IF_ERROR(remember_clear(clear));
    MODCACHE_RETURN_IF_ERROR(raise_last_sequence(clear.sequence));
    MODCACHE_RETURN_IF_ERROR(apply_plan({{}, segment}));
  }
  return transaction.value().commit();
}

}  // namespace modcache::store
