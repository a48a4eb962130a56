// SPDX-License-Identifier: Apache-2.0
//
// The host's own use of its own SQLite.
#include <sqlite3.h>

// Adds a row to the database at `path`, which is made when it is missing, and closes it. Returns
// how many rows there are then; -1: SQLite failed.
int add_row(const char* path) {
  sqlite3* database = 0;
  sqlite3_stmt* count = 0;
  int rows = -1;
  if (sqlite3_open(path, &database) == SQLITE_OK &&
      sqlite3_exec(database,
                   "PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t (x);"
                   "INSERT INTO t VALUES (randomblob(1000))",
                   0, 0, 0) == SQLITE_OK &&
      sqlite3_prepare_v2(database, "SELECT count(*) FROM t", -1, &count, 0) == SQLITE_OK &&
      sqlite3_step(count) == SQLITE_ROW) {
    rows = sqlite3_column_int(count, 0);
  }
  sqlite3_finalize(count);
  sqlite3_close(database);
  return rows;
}
