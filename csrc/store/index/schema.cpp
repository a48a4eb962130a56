// SPDX-License-Identifier: Apache-2.0
#include "store/index/schema.h"

#include <iterator>

#include "store/index/index.h"

namespace modcache::store {
namespace {

// Text from outside (scopes, descriptions, keys) is kept as blobs: it may hold any bytes.
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
  replaces INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY(context_id, key)
) WITHOUT ROWID;
CREATE TABLE clears(
  sequence INTEGER PRIMARY KEY,
  scope BLOB NOT NULL,
  key_prefix BLOB NOT NULL
);
INSERT INTO meta VALUES('last_sequence', 0);
)sql";

// What makes a database of each version one of the next; the first is that of version 1.
constexpr const char* kMigrations[] = {
    "ALTER TABLE entries ADD COLUMN replaces INTEGER NOT NULL DEFAULT 0;",
};
static_assert(std::size(kMigrations) + 1 == kUserVersion);

constexpr char kTableNames[] = "clears,contexts,entries,meta,segments";

// A check of all pages takes about two milliseconds up to this size. In a larger database damage
// shows when the damaged page is read.
constexpr std::int64_t kFullCheckPages = 64;

Status broken(const std::string& what) { return Status::corruption("the database " + what); }

Result<std::string> query_text(Database& database, std::string_view sql) {
  auto statement = database.prepare(sql);
  if (!statement.is_ok()) return statement.status();
  Query query(statement.value());
  auto has_row = query.step();
  if (!has_row.is_ok()) return has_row.status();
  return has_row.value() ? std::string(query.bytes(0)) : std::string();
}

}  // namespace

Status create_schema(Database& database) {
  auto transaction = Transaction::begin(database);
  if (!transaction.is_ok()) return transaction.status();
  MODCACHE_RETURN_IF_ERROR(
      database.execute("PRAGMA application_id=" + std::to_string(kApplicationId)));
  MODCACHE_RETURN_IF_ERROR(database.execute("PRAGMA user_version=" + std::to_string(kUserVersion)));
  MODCACHE_RETURN_IF_ERROR(database.execute(kTables));
  return transaction.value().commit();
}

Result<std::int64_t> check_schema(Database& database) {
  auto application_id = database.query_number("PRAGMA application_id");
  if (!application_id.is_ok()) return application_id.status();
  if (application_id.value() != kApplicationId) return broken("is not of modcache");
  auto user_version = database.query_number("PRAGMA user_version");
  if (!user_version.is_ok()) return user_version.status();
  if (user_version.value() > kUserVersion) {
    return Status::unsupported_version(
        "the database has version " + std::to_string(user_version.value()) +
        ", this modcache reads up to " + std::to_string(kUserVersion));
  }
  if (user_version.value() < 1) return broken("has no version");
  auto tables = query_text(database,
                           "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema"
                           " WHERE type='table' AND name NOT LIKE 'sqlite_%' ORDER BY name)");
  if (!tables.is_ok()) return tables.status();
  if (tables.value() != kTableNames) return broken("lacks tables");
  auto pages = database.query_number("PRAGMA page_count");
  if (!pages.is_ok()) return pages.status();
  if (pages.value() > kFullCheckPages) return user_version;
  auto verdict = query_text(database, "PRAGMA quick_check(1)");
  if (!verdict.is_ok()) return verdict.status();
  if (verdict.value() != "ok") return broken("is damaged: " + verdict.value());
  return user_version;
}

Status migrate_schema(Database& database, std::int64_t version) {
  auto transaction = Transaction::begin(database);
  if (!transaction.is_ok()) return transaction.status();
  for (; version < kUserVersion; ++version) {
    MODCACHE_RETURN_IF_ERROR(database.execute(kMigrations[version - 1]));
  }
  MODCACHE_RETURN_IF_ERROR(database.execute("PRAGMA user_version=" + std::to_string(kUserVersion)));
  return transaction.value().commit();
}

}  // namespace modcache::store
