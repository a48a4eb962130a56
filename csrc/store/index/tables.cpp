// SPDX-License-Identifier: Apache-2.0
#include "store/index/tables.h"

#include <string>

#include "store/directory/directory.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

constexpr std::int64_t kGreatestSequence = std::int64_t{1} << 62;
// Prefix of the names in `meta` that hold the offset of a segment's last record; the segment's name
// follows.
constexpr char kLastOffsetName[] = "offset ";

static_assert(kRecordFixedSizeBytes == 80 && kRecordAlignmentBytes == 64, "as kRecordBytesSql");

// Reads the location from a row whose second column is the offset, followed by the others in their
// order. Numbers that modcache never writes mean that the database is broken, not just the entry.
Result<Location> location_in(const Query& query, std::uint64_t segment) {
  if (query.number(1) < 0 || query.number(2) < 0 || query.number(3) < 0 || query.number(4) <= 0) {
    return Status::corruption("the database has an impossible row");
  }
  Location location;
  location.segment = segment;
  location.offset = static_cast<std::uint64_t>(query.number(1));
  location.header_size_bytes = static_cast<std::uint32_t>(query.number(2));
  location.payload_size_bytes = static_cast<std::uint64_t>(query.number(3));
  location.sequence = static_cast<Sequence>(query.number(4));
  location.run_us = query.number(5);
  return location;
}

}  // namespace

Result<std::uint64_t> segment_named(std::string_view name) {
  const auto segment = parse_segment_name(std::string(name));
  if (!segment) return Status::corruption("the database names an impossible segment");
  return *segment;
}

Result<Digest128> digest_in(const Query& query, int column) {
  const std::string_view digest = query.bytes(column);
  if (digest.size() != Digest128::kSizeBytes) return Status::corruption("a context has no digest");
  return Digest128::from_bytes(digest);
}

Status Tables::prepare_for_reading() {
  return database_->prepare(
      {{&find_,
        "SELECT s.name, e.offset, e.header_size, e.payload_size, e.sequence, e.run_us"
        " FROM contexts c JOIN entries e ON e.context_id=c.id JOIN segments s ON s.id=e.segment_id"
        " WHERE c.digest=? AND e.key=?"},
       {&find_in_context_,
        "SELECT segment_id, offset, header_size, payload_size, sequence, run_us FROM entries"
        " WHERE context_id=? AND key=?"},
       {&segment_by_id_, "SELECT name FROM segments WHERE id=?"},
       {&clears_after_,
        "SELECT sequence, scope, key_prefix FROM clears"
        " WHERE sequence>?"},
       {&context_by_digest_, "SELECT id FROM contexts WHERE digest=?"}});
}

Status Tables::prepare_for_writing() {
  is_writable_ = true;
  return database_->prepare(
      {{&add_context_,
        "INSERT INTO contexts(digest, scope, description) VALUES(?,?,?) RETURNING id"},
       {&segment_by_name_, "SELECT id FROM segments WHERE name=?"},
       {&add_segment_,
        "INSERT INTO segments(name, live_entries, tombstones) VALUES(?,0,0) RETURNING id"},
       {&add_entry_,
        "INSERT INTO entries VALUES(?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT DO NOTHING"},
       {&entry_of_key_, "SELECT segment_id, sequence FROM entries WHERE context_id=? AND key=?"},
       {&replace_entry_,
        "UPDATE entries SET segment_id=?, offset=?, header_size=?, payload_size=?, sequence=?,"
        " run_us=?, stored_at_us=?, replaces=1 WHERE context_id=? AND key=?"},
       {&mark_as_replacing_, "UPDATE entries SET replaces=1 WHERE context_id=? AND key=?"},
       {&replaces_,
        "SELECT replaces FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?)"
        " AND key=? AND sequence=?"},
       {&remove_entry_,
        "DELETE FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
        " AND sequence=? RETURNING segment_id"},
       {&add_live_entries_, "UPDATE segments SET live_entries=live_entries+? WHERE id=?"},
       {&raise_last_sequence_, "UPDATE meta SET value=max(value, ?) WHERE name='last_sequence'"},
       {&raise_last_offset_,
        "INSERT INTO meta VALUES(?,?)"
        " ON CONFLICT(name) DO UPDATE SET value=max(value, excluded.value)"}});
}

Result<Transaction> Tables::begin_writing() {
  if (!is_writable_) return Status::io_error("the database was opened for reading");
  return Transaction::begin(*database_);
}

Result<std::int64_t> Tables::known_context_id(const Digest128& digest) {
  const std::string bytes = digest.bytes();
  Query query(context_by_digest_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind_blob(bytes).step());
  return has_row ? query.number(0) : 0;
}

Result<std::uint64_t> Tables::segment_of(std::int64_t id) {
  Query query(segment_by_id_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(id).step());
  return segment_named(has_row ? query.bytes(0) : std::string_view());
}

Result<std::int64_t> Tables::context_id(const Context& context) {
  auto known = known_context_id(context.digest);
  if (!known.is_ok() || known.value() != 0) return known;
  const std::string digest = context.digest.bytes();
  Query query(add_context_);
  query.bind_blob(digest).bind_blob(context.scope).bind_blob(context.description);
  MODCACHE_RETURN_IF_ERROR(query.step().status());
  return query.number(0);
}

Result<std::int64_t> Tables::segment_id(std::uint64_t segment) {
  const std::string name = segment_name(segment);
  {
    Query query(segment_by_name_);
    MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind_text(name).step());
    if (has_row) return query.number(0);
  }
  Query query(add_segment_);
  MODCACHE_RETURN_IF_ERROR(query.bind_text(name).step().status());
  return query.number(0);
}

Result<Location> Tables::find(const Digest128& context, std::string_view key) {
  const std::string digest = context.bytes();
  Query query(find_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind_blob(digest).bind_blob(key).step());
  if (!has_row) return Status::not_found();
  MODCACHE_ASSIGN_OR_RETURN(auto segment, segment_named(query.bytes(0)));
  return location_in(query, segment);
}

Result<std::optional<Location>> Tables::find_in(std::int64_t context, std::string_view key,
                                                SegmentsById& segments) {
  Query query(find_in_context_);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(context).bind_blob(key).step());
  if (!has_row) return std::optional<Location>();
  const auto [segment, is_new] = segments.emplace(query.number(0), 0);
  if (is_new) {
    MODCACHE_ASSIGN_OR_RETURN(segment->second, segment_of(segment->first));
  }
  MODCACHE_ASSIGN_OR_RETURN(auto location, location_in(query, segment->second));
  return std::optional<Location>(location);
}

Result<bool> Tables::replaces(const Digest128& context, std::string_view key, Sequence sequence) {
  const std::string digest = context.bytes();
  Query query(replaces_);
  query.bind_blob(digest).bind_blob(key).bind(static_cast<std::int64_t>(sequence));
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.step());
  if (!has_row) return Status::not_found();
  return query.number(0) != 0;
}

Result<std::optional<Sequence>> Tables::add_row(const NewRow& row, std::int64_t context,
                                                std::int64_t segment) {
  const Location& location = row.location;
  const auto offset = static_cast<std::int64_t>(location.offset);
  const auto payload_size = static_cast<std::int64_t>(location.payload_size_bytes);
  const auto sequence = static_cast<std::int64_t>(location.sequence);
  {
    Query query(add_entry_);
    query.bind(context).bind_blob(row.key).bind(segment).bind(offset);
    query.bind(location.header_size_bytes).bind(payload_size).bind(sequence);
    query.bind(location.run_us).bind(row.stored_at_us).bind(row.replaces ? 1 : 0);
    MODCACHE_RETURN_IF_ERROR(query.run());
  }
  if (database_->changes() > 0) {
    MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
    return std::optional<Sequence>(0);
  }
  std::int64_t old_segment = 0;
  std::int64_t known_sequence = 0;
  {
    Query query(entry_of_key_);
    MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.bind(context).bind_blob(row.key).step());
    if (!has_row) return std::optional<Sequence>();
    old_segment = query.number(0);
    known_sequence = query.number(1);
  }
  // The same record again, which happens in a rebuild.
  if (known_sequence == sequence) return std::optional<Sequence>();
  // The later row stays, but from now on the segments hold an older record of its key.
  if (known_sequence > sequence) {
    Query query(mark_as_replacing_);
    MODCACHE_RETURN_IF_ERROR(query.bind(context).bind_blob(row.key).run());
    return std::optional<Sequence>();
  }
  {
    Query query(replace_entry_);
    query.bind(segment).bind(offset).bind(location.header_size_bytes).bind(payload_size);
    query.bind(sequence).bind(location.run_us).bind(row.stored_at_us);
    MODCACHE_RETURN_IF_ERROR(query.bind(context).bind_blob(row.key).run());
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(old_segment, -1));
  MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, 1));
  return std::optional<Sequence>(static_cast<Sequence>(known_sequence));
}

Result<bool> Tables::remove_row(const Digest128& context, std::string_view key, Sequence sequence) {
  const std::string digest = context.bytes();
  std::int64_t segment = 0;
  {
    Query query(remove_entry_);
    query.bind_blob(digest).bind_blob(key).bind(static_cast<std::int64_t>(sequence));
    auto has_row = query.step();
    if (!has_row.is_ok() || !has_row.value()) return has_row;
    segment = query.number(0);
    // RETURNING takes effect only when the statement has run to its end.
    MODCACHE_RETURN_IF_ERROR(query.run());
  }
  MODCACHE_RETURN_IF_ERROR(add_live_entries(segment, -1));
  return true;
}

Result<std::vector<Clear>> Tables::clears_after(Sequence sequence) {
  std::vector<Clear> clears;
  Query query(clears_after_);
  query.bind(static_cast<std::int64_t>(sequence));
  MODCACHE_RETURN_IF_ERROR(query.each([&] {
    clears.push_back({{std::string(query.bytes(1)), std::string(query.bytes(2))},
                      static_cast<Sequence>(query.number(0))});
    return Status::ok();
  }));
  return clears;
}

Result<std::int64_t> Tables::count_entries() {
  return database_->query_number("SELECT coalesce(sum(live_entries), 0) FROM segments");
}

Status Tables::add_live_entries(std::int64_t segment, std::int64_t count) {
  Query query(add_live_entries_);
  return query.bind(count).bind(segment).run();
}

Status Tables::add_tombstone(std::uint64_t segment) {
  MODCACHE_ASSIGN_OR_RETURN(auto id, segment_id(segment));
  Query query(*database_, "UPDATE segments SET tombstones=tombstones+1 WHERE id=?");
  return query.bind(id).run();
}

Status Tables::forget_segment(std::uint64_t segment) {
  const std::string name = segment_name(segment);
  Query query(*database_, "DELETE FROM segments WHERE name=?");
  MODCACHE_RETURN_IF_ERROR(query.bind_text(name).run());
  const std::string offset_name = kLastOffsetName + name;
  Query offset_query(*database_, "DELETE FROM meta WHERE name=?");
  return offset_query.bind_text(offset_name).run();
}

Result<Sequence> Tables::last_sequence() {
  auto number = database_->query_number("SELECT value FROM meta WHERE name='last_sequence'");
  if (number.is_not_found()) return Status::corruption("the database has no last sequence");
  if (!number.is_ok()) return number.status();
  // No directory gets that far, and greater numbers would be negative in SQLite.
  if (number.value() < 0 || number.value() > kGreatestSequence) {
    return Status::corruption("the database has an impossible last sequence");
  }
  return static_cast<Sequence>(number.value());
}

Status Tables::raise_last_sequence(Sequence sequence) {
  Query query(raise_last_sequence_);
  return query.bind(static_cast<std::int64_t>(sequence)).run();
}

Result<std::uint64_t> Tables::last_offset(std::uint64_t segment) {
  const std::string name = segment_name(segment);
  auto offset = database_->query_number("SELECT value FROM meta WHERE name='" +
                                        (kLastOffsetName + name) + "'");
  if (offset.is_ok() && offset.value() > 0) return static_cast<std::uint64_t>(offset.value());
  if (!offset.is_ok() && !offset.is_not_found()) return offset.status();
  MODCACHE_ASSIGN_OR_RETURN(
      auto known,
      database_->query_number("SELECT count(*) FROM segments WHERE name='" + name + "'"));
  return known == 0 ? kSegmentHeaderSizeBytes : std::uint64_t{0};
}

Status Tables::raise_last_offset(std::uint64_t segment, std::uint64_t offset) {
  const std::string name = kLastOffsetName + segment_name(segment);
  Query query(raise_last_offset_);
  return query.bind_text(name).bind(static_cast<std::int64_t>(offset)).run();
}

}  // namespace modcache::store
