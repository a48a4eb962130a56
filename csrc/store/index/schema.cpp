// SPDX-License-Identifier: Apache-2.0
#include "store/index/schema.h"

#include "store/index/index.h"

namespace modcache::store {
namespace {

// Text from outside (scopes, descriptions, keys) is stored as blobs, as it may hold any bytes.
constexpr char kTables[] = R"sql(
CREATE TABLE meta(
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE segments(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  live_entries INTEGER NOT NULL,
  tombstones INTEGER NOT NULL
);
CREATE TABLE contexts(
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  scope BLOB NOT NULL,
  description BLOB NOT NULL
);
CREATE TABLE entries(
  context_id INTEGER NOT NULL REFERENCES contexts(id),
  key BLOB NOT NULL,
  segment_id INTEGER NOT NULL REFERENCES segments(id),
  offset INTEGER NOT NULL,
  header_size INTEGER NOT NULL,
  payload_size INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  run_us INTEGER NOT NULL,
  stored_at_us INTEGER NOT NULL,
  replaces INTEGER NOT NULL,
  PRIMARY KEY(context_id, key)
) WITHOUT ROWID;
CREATE TABLE clears(
  sequence INTEGER PRIMARY KEY,
  scope BLOB NOT NULL,
  key_prefix BLOB NOT NULL
);
INSERT INTO meta VALUES('last_sequence', 0);
)sql";

constexpr char kTableNames[] = "clears,contexts,entries,meta,segments";

// Up to this size a check of all pages takes about two milliseconds. Damage of a larger database
// shows when the damaged page is read.
constexpr std::int64_t kFullCheckPages = 64;

Status broken(const std::string& what) { return Status::corruption("the database " + what); }

Result<std::string> query_text(Database& database, std::string_view sql) {
  Query query(database, sql);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.step());
  return has_row ? std::string(query.bytes(0)) : std::string();
}

}  // namespace

Status create_schema(Database& database) {
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin(database));
  MODCACHE_RETURN_IF_ERROR(
      database.execute("PRAGMA application_id=" + std::to_string(kApplicationId)));
  MODCACHE_RETURN_IF_ERROR(database.execute("PRAGMA user_version=" + std::to_string(kUserVersion)));
  MODCACHE_RETURN_IF_ERROR(database.execute(kTables));
  return transaction.commit();
}

Status check_schema(Database& database) {
  MODCACHE_ASSIGN_OR_RETURN(auto application_id, database.query_number("PRAGMA application_id"));
  if (application_id != kApplicationId) return broken("is not of modcache");
  MODCACHE_ASSIGN_OR_RETURN(auto user_version, database.query_number("PRAGMA user_version"));
  if (user_version < 1) return broken("has no version");
  if (user_version != kUserVersion) {
    return Status::unsupported_version("the database has version " + std::to_string(user_version) +
                                       ", this modcache reads version " +
                                       std::to_string(kUserVersion));
  }
  MODCACHE_ASSIGN_OR_RETURN(
      auto tables, query_text(database,
                              "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema"
                              " WHERE type='table' AND name NOT LIKE 'sqlite_%' ORDER BY name)"));
  if (tables != kTableNames) return broken("lacks tables");
  MODCACHE_ASSIGN_OR_RETURN(auto pages, database.query_number("PRAGMA page_count"));
  if (pages > kFullCheckPages) return Status::ok();
  MODCACHE_ASSIGN_OR_RETURN(auto verdict, query_text(database, "PRAGMA quick_check(1)"));
  if (verdict != "ok") return broken("is damaged: " + verdict);
  return Status::ok();
}

}  // namespace modcache::store
