// SPDX-License-Identifier: Apache-2.0
//
// The half of Index that removes many rows at once.
#include <utility>

#include "store/directory.h"
#include "store/index.h"

namespace modcache::store {
namespace {

// The smallest bytes that come after all that begin with `prefix`; none when there are none.
std::optional<std::string> end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::nullopt;
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

}  // namespace

Result<std::int64_t> Index::clear(const Clear& clear, const Plan& plan) {
  MutexLock lock(mutex_);
  auto transaction = Transaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  auto removed = remove_cleared(clear);
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

Result<std::int64_t> Index::remove_cleared(const Clear& clear) {
  const ClearFilter& filter = clear.filter;
  if (filter.scope.empty() && filter.key_prefix.empty()) {
    auto last = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
    if (!last.is_ok()) return last.status();
    // Without a condition SQLite drops the table's pages whole, however many rows there are.
    if (static_cast<Sequence>(last.value()) < clear.sequence) return remove_all();
  }
  const auto end = end_of_prefix(filter.key_prefix);
  std::string where = " WHERE sequence<?";
  if (!filter.scope.empty()) where += " AND context_id IN (SELECT id FROM contexts WHERE scope=?)";
  if (!filter.key_prefix.empty()) where += " AND key>=?";
  if (end) where += " AND key<?";
  const auto bind = [&](Query& query) {
    query.bind(static_cast<std::int64_t>(clear.sequence));
    if (!filter.scope.empty()) query.bind_blob(filter.scope);
    if (!filter.key_prefix.empty()) query.bind_blob(filter.key_prefix);
    if (end) query.bind_blob(*end);
  };

  std::vector<std::pair<std::int64_t, std::int64_t>> counts;
  {
    auto statement = database_->prepare("SELECT segment_id, count(*) FROM entries" + where +
                                        " GROUP BY segment_id");
    if (!statement.is_ok()) return statement.status();
    Query query(statement.value());
    bind(query);
    while (true) {
      auto has_row = query.step();
      if (!has_row.is_ok()) return has_row.status();
      if (!has_row.value()) break;
      counts.emplace_back(query.number(0), query.number(1));
    }
  }
  std::int64_t removed = 0;
  for (const auto& [segment, count] : counts) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, -count));
    removed += count;
  }
  auto statement = database_->prepare("DELETE FROM entries" + where);
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  bind(query);
  MODCACHE_RETURN_IF_ERROR(query.run());
  return removed;
}

Status Index::remember_clear(const Clear& clear) {
  const auto sequence = static_cast<std::int64_t>(clear.sequence);
  // A clear of everything makes all earlier ones superfluous, which bounds the table in practice.
  if (clear.filter.scope.empty() && clear.filter.key_prefix.empty()) {
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
  auto transaction = Transaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  for (const Clear& clear : clears) {
    auto removed = remove_cleared(clear);
    if (!removed.is_ok()) return removed.status();
    MODCACHE_RETURN_IF_ERROR(remember_clear(clear));
    MODCACHE_RETURN_IF_ERROR(raise_last_sequence(clear.sequence));
    MODCACHE_RETURN_IF_ERROR(apply_plan({{}, segment}));
  }
  return transaction.value().commit();
}

}  // namespace modcache::store
