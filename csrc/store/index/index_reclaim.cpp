// SPDX-License-Identifier: Apache-2.0
//
// The half of Index that is about single segments: what lies in one is moved and evicted, and where
// the last of its records lies.
#include <algorithm>
#include <map>
#include <utility>

#include "store/directory.h"
#include "store/index/index.h"
#include "store/index/index_statements.h"
#include "store/index/tombstone.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// What a record takes in a segment, from the sizes that a row has (FORMAT.md).
constexpr char kRecordBytes[] = "((80+length(key)+header_size+63)/64*64+(payload_size+63)/64*64)";

}  // namespace

Result<std::vector<LiveBytes>> Index::live_bytes(std::int64_t stored_since_us) {
  MutexLock lock(mutex_);
  auto statement = database_->prepare(
      std::string("SELECT s.name, s.live_entries, coalesce(e.bytes, 0) FROM segments s LEFT JOIN"
                  " (SELECT segment_id, sum") +
      kRecordBytes +
      " AS bytes FROM entries WHERE stored_at_us>=? GROUP BY segment_id) e ON e.segment_id=s.id");
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  query.bind(stored_since_us);
  std::vector<LiveBytes> found;
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return found;
    const auto id = parse_segment_name(std::string(query.bytes(0)));
    if (!id) return Status::corruption("the database names an impossible segment");
    found.push_back({*id, query.number(1), static_cast<std::uint64_t>(query.number(2))});
  }
}

Result<std::vector<RowState>> Index::states_of(const std::vector<PlacedRow>& rows) {
  std::vector<RowState> states(rows.size());
  MutexLock lock(mutex_);
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  auto statement = database_->prepare(
      "SELECT e.sequence, e.offset, s.name, e.replaces FROM entries e"
      " JOIN segments s ON s.id=e.segment_id WHERE e.context_id=? AND e.key=?");
  if (!statement.is_ok()) return statement.status();
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> contexts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PlacedRow& row = rows[i];
    const auto [context, is_new] =
        contexts.emplace(std::pair(row.context.high, row.context.low), 0);
    if (is_new) {
      auto id = known_context_id(row.context);
      if (!id.is_ok()) return id.status();
      context->second = id.value();
    }
    if (context->second == 0) continue;
    Query query(statement.value());
    auto has_row = query.bind(context->second).bind_blob(row.key).step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) continue;
    states[i].is_live = static_cast<Sequence>(query.number(0)) == row.sequence &&
                        static_cast<std::uint64_t>(query.number(1)) == row.offset &&
                        query.bytes(2) == segment_name(row.segment);
    states[i].replaces = query.number(3) != 0;
  }
  return states;
}

Result<Settled> Index::settle(std::uint64_t segment, const std::vector<MovedRow>& moved,
                              const std::vector<PlacedRow>& evicted,
                              const std::vector<std::uint64_t>& tombstones) {
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  auto from = segment_id(segment);
  if (!from.is_ok()) return from.status();
  Settled settled;
  auto move = database_->prepare(
      "UPDATE entries SET segment_id=?, offset=?"
      " WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
      " AND sequence=? AND segment_id=? AND offset=?");
  if (!move.is_ok()) return move.status();
  std::map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> targets;  // id, rows
  LastOffsets last_offsets;
  for (const MovedRow& row : moved) {
    auto& [target, rows] = targets[row.to_segment];
    if (target == 0) {
      auto id = segment_id(row.to_segment);
      if (!id.is_ok()) return id.status();
      target = id.value();
    }
    const std::string digest = row.row.context.bytes();
    Query query(move.value());
    query.bind(target).bind(static_cast<std::int64_t>(row.to_offset)).bind_blob(digest);
    query.bind_blob(row.row.key).bind(static_cast<std::int64_t>(row.row.sequence));
    query.bind(from.value()).bind(static_cast<std::int64_t>(row.row.offset));
    MODCACHE_RETURN_IF_ERROR(query.run());
    settled.is_moved.push_back(database_->changes() > 0);
    rows += database_->changes();
    note_last(last_offsets, row.to_segment, row.to_offset);
  }
  MODCACHE_RETURN_IF_ERROR(raise_last_offsets(last_offsets));
  for (const auto& [id, target] : targets) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(target.first, target.second));
    settled.moved += target.second;
  }
  auto remove = database_->prepare(
      "DELETE FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
      " AND sequence=? AND segment_id=? AND offset=?");
  if (!remove.is_ok()) return remove.status();
  for (const PlacedRow& row : evicted) {
    const std::string digest = row.context.bytes();
    Query query(remove.value());
    query.bind_blob(digest).bind_blob(row.key).bind(static_cast<std::int64_t>(row.sequence));
    query.bind(from.value()).bind(static_cast<std::int64_t>(row.offset));
    MODCACHE_RETURN_IF_ERROR(query.run());
    settled.evicted += database_->changes();
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(from.value(), -settled.moved - settled.evicted));
  for (const std::uint64_t target : tombstones) {
    MODCACHE_RETURN_IF_ERROR(apply_plan({{}, target}));
  }
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return settled;
}

Result<bool> Index::leads_into(std::uint64_t segment, std::uint64_t begin, std::uint64_t end,
                               Sequence up_to) {
  MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT 1 FROM entries WHERE segment_id=(SELECT id FROM segments WHERE name=?)"
      " AND offset>=? AND offset<? AND sequence<=? LIMIT 1");
  if (!statement.is_ok()) return statement.status();
  const std::string name = segment_name(segment);
  Query query(statement.value());
  query.bind_text(name).bind(static_cast<std::int64_t>(begin));
  query.bind(static_cast<std::int64_t>(end)).bind(static_cast<std::int64_t>(up_to));
  return query.step();
}

Result<std::vector<Clear>> Index::clears_to_record(std::uint64_t segment, bool is_damaged) {
  MutexLock lock(mutex_);
  std::vector<Clear> clears;
  if (is_damaged) {
    auto known = clears_after(0);
    if (!known.is_ok()) return known;
    clears = std::move(known).value();
  }
  const std::string where = " WHERE name='" + segment_name(segment) + "'";
  auto live = database_->query_number("SELECT live_entries FROM segments" + where);
  if (live.is_not_found() || (live.is_ok() && live.value() <= 0)) return clears;
  if (!live.is_ok()) return live.status();
  // Looks at all rows, since only damage leaves any.
  auto statement = database_->prepare(
      "SELECT c.digest, c.scope, e.key, e.sequence FROM entries e"
      " JOIN contexts c ON c.id=e.context_id"
      " WHERE e.replaces=1 AND e.segment_id=(SELECT id FROM segments" +
      where + ")");
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return clears;
    if (query.bytes(0).size() != 16) return Status::corruption("a context has no digest");
    const Context context{Digest128::from_bytes(query.bytes(0)), std::string(query.bytes(1)), ""};
    clears.push_back(
        clear_of_replaced(context, query.bytes(2), static_cast<Sequence>(query.number(3))));
  }
}

Result<std::int64_t> Index::forget_segment(std::uint64_t segment,
                                           const std::vector<std::uint64_t>& clears_moved_to) {
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  auto id = segment_id(segment);
  if (!id.is_ok()) return id.status();
  auto live = database_->query_number("SELECT live_entries FROM segments WHERE id=" +
                                      std::to_string(id.value()));
  if (!live.is_ok()) return live.status();
  std::int64_t removed = 0;
  // Looks at all rows, since only damage leaves any.
  if (live.value() > 0) {
    auto remove = database_->prepare("DELETE FROM entries WHERE segment_id=?");
    if (!remove.is_ok()) return remove.status();
    MODCACHE_RETURN_IF_ERROR(Query(remove.value()).bind(id.value()).run());
    removed = database_->changes();
  }
  for (const std::uint64_t target : clears_moved_to) {
    MODCACHE_RETURN_IF_ERROR(apply_plan({{}, target}));
  }
  MODCACHE_RETURN_IF_ERROR(apply_plan({{segment}, std::nullopt}));
  MODCACHE_RETURN_IF_ERROR(transaction.value().commit());
  return removed;
}

Status Index::apply_narrow_clears(const std::vector<Clear>& clears) {
  MutexLock lock(mutex_);
  auto transaction = begin_writing();
  if (!transaction.is_ok()) return transaction.status();
  for (const Clear& clear : clears) {
    MODCACHE_RETURN_IF_ERROR(remove_cleared(clear, nullptr).status());
  }
  return transaction.value().commit();
}

void Index::note_last(LastOffsets& offsets, std::uint64_t segment, std::uint64_t offset) {
  std::uint64_t& last = offsets[segment];
  last = std::max(last, offset);
}

Status Index::raise_last_offsets(const LastOffsets& offsets) {
  for (const auto& [segment, offset] : offsets) {
    MODCACHE_RETURN_IF_ERROR(raise_last_offset(segment, offset));
  }
  return Status::ok();
}

Status Index::raise_last_offset(std::uint64_t segment, std::uint64_t offset) {
  const std::string name = kLastOffsetName + segment_name(segment);
  Query query(statements_->raise_last_offset);
  return query.bind_text(name).bind(static_cast<std::int64_t>(offset)).run();
}

Result<std::uint64_t> Index::last_offset(std::uint64_t segment) {
  MutexLock lock(mutex_);
  const std::string name = segment_name(segment);
  auto offset = database_->query_number("SELECT value FROM meta WHERE name='" +
                                        (kLastOffsetName + name) + "'");
  if (offset.is_ok() && offset.value() > 0) return static_cast<std::uint64_t>(offset.value());
  if (!offset.is_ok() && !offset.is_not_found()) return offset.status();
  auto known = database_->query_number("SELECT count(*) FROM segments WHERE name='" + name + "'");
  if (!known.is_ok()) return known.status();
  return known.value() == 0 ? kSegmentHeaderSizeBytes : std::uint64_t{0};
}

}  // namespace modcache::store
