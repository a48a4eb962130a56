// SPDX-License-Identifier: Apache-2.0
#include "store/index/segment_rows.h"

#include <map>
#include <utility>

#include "store/directory/directory.h"
#include "store/index/database.h"
#include "store/index/tables.h"
#include "store/segment/tombstone.h"

namespace modcache::store {

Result<std::vector<LiveBytes>> live_bytes(Index& index, std::int64_t stored_since_us) {
  IndexLock tables(index);
  Query query(tables->database(),
              std::string("SELECT s.name, s.live_entries, coalesce(e.bytes, 0) FROM segments s"
                          " LEFT JOIN (SELECT segment_id, sum") +
                  kRecordBytesSql +
                  " AS bytes FROM entries WHERE stored_at_us>=? GROUP BY segment_id) e"
                  " ON e.segment_id=s.id");
  query.bind(stored_since_us);
  std::vector<LiveBytes> found;
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto id, segment_named(query.bytes(0)));
    found.push_back({id, query.number(1), static_cast<std::uint64_t>(query.number(2))});
    return Status::ok();
  }));
  return found;
}

Result<std::vector<RowState>> states_of(Index& index, const std::vector<PlacedRow>& rows) {
  std::vector<RowState> states(rows.size());
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(tables->database()));
  MODCACHE_ASSIGN_OR_RETURN(
      auto statement,
      tables->database().prepare(
          "SELECT e.sequence, e.offset, s.name, e.replaces FROM entries e"
          " JOIN segments s ON s.id=e.segment_id WHERE e.context_id=? AND e.key=?"));
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> contexts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PlacedRow& row = rows[i];
    const auto [context, is_new] =
        contexts.emplace(std::pair(row.context.high, row.context.low), 0);
    if (is_new) {
      MODCACHE_ASSIGN_OR_RETURN(context->second, tables->known_context_id(row.context));
    }
    if (context->second == 0) continue;
    Query query(statement);
    MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(context->second).bind_blob(row.key).step());
    if (!has_row) continue;
    states[i].is_live = static_cast<Sequence>(query.number(0)) == row.sequence &&
                        static_cast<std::uint64_t>(query.number(1)) == row.offset &&
                        query.bytes(2) == segment_name(row.segment);
    states[i].replaces = query.number(3) != 0;
  }
  return states;
}

namespace {

// Counts in `settled` the rows of the segment with the number `from` that it moves.
Status move_rows(Tables& tables, std::int64_t from, const std::vector<MovedRow>& moved,
                 Settled& settled) {
  // The entry may have been replaced or moved meanwhile: a row that differs in any of these stays.
  MODCACHE_ASSIGN_OR_RETURN(
      auto move, tables.database().prepare(
                     "UPDATE entries SET segment_id=?, offset=?"
                     " WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
                     " AND sequence=? AND segment_id=? AND offset=?"));
  std::map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> targets;  // id, number of rows
  LastOffsets last_offsets;
  for (const MovedRow& row : moved) {
    auto& [target, rows] = targets[row.to_segment];
    if (target == 0) {
      MODCACHE_ASSIGN_OR_RETURN(target, tables.segment_id(row.to_segment));
    }
    const std::string digest = row.row.context.bytes();
    Query query(move);
    query.bind(target).bind(static_cast<std::int64_t>(row.to_offset)).bind_blob(digest);
    query.bind_blob(row.row.key).bind(static_cast<std::int64_t>(row.row.sequence));
    query.bind(from).bind(static_cast<std::int64_t>(row.row.offset));
    MODCACHE_RETURN_IF_ERROR(query.run());
    settled.is_moved.push_back(tables.database().changes() > 0);
    rows += tables.database().changes();
    last_offsets.note(row.to_segment, row.to_offset);
  }
  MODCACHE_RETURN_IF_ERROR(last_offsets.raise_in(tables));
  for (const auto& [id, target] : targets) {
    MODCACHE_RETURN_IF_ERROR(tables.add_live_entries(target.first, target.second));
    settled.moved += target.second;
  }
  return Status::ok();
}

// Counts in `settled` the rows of the segment with the number `from` that it removes.
Status remove_rows(Tables& tables, std::int64_t from, const std::vector<PlacedRow>& evicted,
                   Settled& settled) {
  MODCACHE_ASSIGN_OR_RETURN(
      auto remove,
      tables.database().prepare(
          "DELETE FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
          " AND sequence=? AND segment_id=? AND offset=?"));
  for (const PlacedRow& row : evicted) {
    const std::string digest = row.context.bytes();
    Query query(remove);
    query.bind_blob(digest).bind_blob(row.key).bind(static_cast<std::int64_t>(row.sequence));
    query.bind(from).bind(static_cast<std::int64_t>(row.offset));
    MODCACHE_RETURN_IF_ERROR(query.run());
    settled.evicted += tables.database().changes();
  }
  return Status::ok();
}

}  // namespace

Result<Settled> settle_rows(Index& index, std::uint64_t segment, const std::vector<MovedRow>& moved,
                            const std::vector<PlacedRow>& evicted,
                            const std::vector<std::uint64_t>& tombstones) {
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables->begin_writing());
  MODCACHE_ASSIGN_OR_RETURN(auto from, tables->segment_id(segment));
  Settled settled;
  MODCACHE_RETURN_IF_ERROR(move_rows(*tables, from, moved, settled));
  MODCACHE_RETURN_IF_ERROR(remove_rows(*tables, from, evicted, settled));
  MODCACHE_RETURN_IF_ERROR(tables->add_live_entries(from, -settled.moved - settled.evicted));
  for (const std::uint64_t target : tombstones) {
    MODCACHE_RETURN_IF_ERROR(tables->add_tombstone(target));
  }
  MODCACHE_RETURN_IF_ERROR(transaction.commit());
  return settled;
}

Result<bool> leads_into(Index& index, std::uint64_t segment, std::uint64_t begin, std::uint64_t end,
                        Sequence up_to) {
  IndexLock tables(index);
  const std::string name = segment_name(segment);
  Query query(tables->database(),
              "SELECT 1 FROM entries WHERE segment_id=(SELECT id FROM segments WHERE name=?)"
              " AND offset>=? AND offset<? AND sequence<=? LIMIT 1");
  query.bind_text(name).bind(static_cast<std::int64_t>(begin));
  query.bind(static_cast<std::int64_t>(end)).bind(static_cast<std::int64_t>(up_to));
  return query.step();
}

Result<std::vector<Clear>> clears_to_record(Index& index, std::uint64_t segment, bool is_damaged) {
  IndexLock tables(index);
  std::vector<Clear> clears;
  if (is_damaged) {
    auto known = tables->clears_after(0);
    if (!known.is_ok()) return known;
    clears = std::move(known).value();
  }
  const std::string where = " WHERE name='" + segment_name(segment) + "'";
  auto live = tables->database().query_number("SELECT live_entries FROM segments" + where);
  if (live.is_not_found() || (live.is_ok() && live.value() <= 0)) return clears;
  if (!live.is_ok()) return live.status();
  // Reads all rows, which only happens after damage has left some in the segment.
  Query query(tables->database(),
              "SELECT c.digest, c.scope, e.key, e.sequence FROM entries e"
              " JOIN contexts c ON c.id=e.context_id"
              " WHERE e.replaces=1 AND e.segment_id=(SELECT id FROM segments" +
                  where + ")");
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto digest, digest_in(query, 0));
    const Context context{digest, std::string(query.bytes(1)), ""};
    clears.push_back(
        clear_of_replaced(context, query.bytes(2), static_cast<Sequence>(query.number(3))));
    return Status::ok();
  }));
  return clears;
}

Result<std::int64_t> forget_segment(Index& index, std::uint64_t segment,
                                    const std::vector<std::uint64_t>& clears_moved_to) {
  IndexLock tables(index);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables->begin_writing());
  MODCACHE_ASSIGN_OR_RETURN(auto id, tables->segment_id(segment));
  MODCACHE_ASSIGN_OR_RETURN(
      auto live, tables->database().query_number("SELECT live_entries FROM segments WHERE id=" +
                                                 std::to_string(id)));
  std::int64_t removed = 0;
  // Reads all rows, which only happens after damage has left some in the segment.
  if (live > 0) {
    Query query(tables->database(), "DELETE FROM entries WHERE segment_id=?");
    MODCACHE_RETURN_IF_ERROR(query.bind(id).run());
    removed = tables->database().changes();
  }
  for (const std::uint64_t target : clears_moved_to) {
    MODCACHE_RETURN_IF_ERROR(tables->add_tombstone(target));
  }
  MODCACHE_RETURN_IF_ERROR(tables->forget_segment(segment));
  MODCACHE_RETURN_IF_ERROR(transaction.commit());
  return removed;
}

}  // namespace modcache::store
