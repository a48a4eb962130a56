// SPDX-License-Identifier: Apache-2.0
#include "store/index/index_statements.h"

#include <initializer_list>
#include <utility>

namespace modcache::store {
namespace {

Status prepare(Database& database,
               std::initializer_list<std::pair<Statement*, const char*>> statements) {
  for (const auto& [statement, sql] : statements) {
    auto prepared = database.prepare(sql);
    if (!prepared.is_ok()) return prepared.status();
    *statement = std::move(prepared).value();
  }
  return Status::ok();
}

}  // namespace

Status Index::prepare_reading() {
  return prepare(
      *database_,
      {{&statements_->find,
        "SELECT s.name, e.offset, e.header_size, e.payload_size, e.sequence, e.run_us"
        " FROM contexts c JOIN entries e ON e.context_id=c.id JOIN segments s ON s.id=e.segment_id"
        " WHERE c.digest=? AND e.key=?"},
       {&statements_->find_in_context,
        "SELECT segment_id, offset, header_size, payload_size, sequence, run_us FROM entries"
        " WHERE context_id=? AND key=?"},
       {&statements_->segment_by_id, "SELECT name FROM segments WHERE id=?"},
       {&statements_->clears_after,
        "SELECT sequence, scope, key_prefix FROM clears"
        " WHERE sequence>?"},
       {&statements_->context_by_digest, "SELECT id FROM contexts WHERE digest=?"}});
}

// Tables of an older version, which are only read, may lack what these name.
Status Index::prepare_writing() {
  is_writable_ = true;
  return prepare(
      *database_,
      {{&statements_->add_context,
        "INSERT INTO contexts(digest, scope, description) VALUES(?,?,?) RETURNING id"},
       {&statements_->segment_by_name, "SELECT id FROM segments WHERE name=?"},
       {&statements_->add_segment,
        "INSERT INTO segments(name, live_entries, tombstones) VALUES(?,0,0) RETURNING id"},
       {&statements_->add_entry,
        "INSERT INTO entries VALUES(?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT DO NOTHING"},
       {&statements_->entry_of_key,
        "SELECT segment_id, sequence FROM entries WHERE context_id=? AND key=?"},
       {&statements_->replace_entry,
        "UPDATE entries SET segment_id=?, offset=?, header_size=?, payload_size=?, sequence=?,"
        " run_us=?, stored_at_us=?, replaces=1 WHERE context_id=? AND key=?"},
       {&statements_->mark_as_replacing,
        "UPDATE entries SET replaces=1 WHERE context_id=? AND key=?"},
       {&statements_->replaces,
        "SELECT replaces FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?)"
        " AND key=? AND sequence=?"},
       {&statements_->remove_entry,
        "DELETE FROM entries WHERE context_id=(SELECT id FROM contexts WHERE digest=?) AND key=?"
        " AND sequence=? RETURNING segment_id"},
       {&statements_->add_live_entries,
        "UPDATE segments SET live_entries=live_entries+? WHERE id=?"},
       {&statements_->raise_last_sequence,
        "UPDATE meta SET value=max(value, ?) WHERE name='last_sequence'"},
       {&statements_->raise_last_offset,
        "INSERT INTO meta VALUES(?,?)"
        " ON CONFLICT(name) DO UPDATE SET value=max(value, excluded.value)"}});
}

}  // namespace modcache::store
