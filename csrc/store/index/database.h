// SPDX-License-Identifier: Apache-2.0
//
// RAII over SQLite. database.cpp is the only file that includes sqlite3.h.
//
// Not thread-safe: the owner's mutex guards a Database and all objects made from it. That mutex
// must be held across fork (base/fork.h), so that a child never inherits SQLite in the middle of a
// call. The child closes the inherited connections (their locks are not its own) when it opens its
// first Database; it must not touch the parent's objects.
//
// Errors: kCorruption (the file is broken or not a database), kNoSpace, kBusy (another connection
// holds a lock), kForeign (a link, a pipe or another user's file is in the place of one of SQLite's
// files), kIoError (the rest).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "fs/file_system.h"

struct sqlite3;
struct sqlite3_stmt;

namespace modcache::store {

class Database;

// The version of the SQLite in this process, such as "3.40.1".
std::string_view sqlite_version();

// A prepared statement. Bound text and blobs are borrowed until the Query that uses them ends.
class Statement {
 public:
  Statement() = default;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

 private:
  friend class Query;
  sqlite3_stmt* statement_ = nullptr;
};

// The number of queries that this thread has run on any database. Tests use it to measure calls.
std::uint64_t queries_run();

// One execution of a Statement. Resets it in the end, so that no read transaction stays open.
class Query {
 public:
  explicit Query(Statement& statement);
  // Prepares a statement that is needed once. If that fails, step() and run() return why.
  Query(Database& database, std::string_view sql);
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Parameters are bound in their order.
  Query& bind(std::int64_t number);
  Query& bind_text(std::string_view text);
  Query& bind_blob(std::string_view blob);

  // Returns true when there is a row, and false at the end.
  Result<bool> step();
  // Executes a statement without rows.
  Status run();
  // Calls on_row() for each row that is left, and ends early with the first failure that it
  // returns.
  template <typename OnRow>
  Status each(const OnRow& on_row) {
    while (true) {
      auto has_row = step();
      if (!has_row.is_ok() || !has_row.value()) return has_row.status();
      MODCACHE_RETURN_IF_ERROR(on_row());
    }
  }

  std::int64_t number(int column) const;
  // Text or blob; valid until the next step.
  std::string_view bytes(int column) const;

 private:
  Statement own_;
  Status status_;  // of preparing it
  sqlite3_stmt* statement_;
  int next_parameter_ = 1;
};

class Database {
 public:
  enum class Mode {
    kWrite,      // an existing database
    kCreate,     // a new file that nothing else has open
    kRead,       // changes nothing, but sees what others commit
    kImmutable,  // takes no lock; only for files that nobody changes
    kReadAlone,  // reads the log without shared memory; nobody else has the file open
    kMemory,     // a private database without a file
  };

  // Opens the database at `path`. Its queries wait up to `patience_ms` for other connections.
  static Result<std::unique_ptr<Database>> open(fs::FileSystem& file_system,
                                                const std::string& path, Mode mode,
                                                std::int64_t patience_ms);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Executes statements without parameters and results.
  Status execute(const std::string& sql);
  Result<Statement> prepare(std::string_view sql);
  // Fills many.
  Status prepare(std::initializer_list<std::pair<Statement*, std::string>> statements);
  // Returns the number that a query gives; kNotFound when it gives no row.
  Result<std::int64_t> query_number(std::string_view sql);
  // The number of rows that the last statement changed.
  std::int64_t changes() const;
  // Empties the log. Returns false when somebody reads from it; waits for nobody.
  Result<bool> checkpoint();

 private:
  Database(sqlite3* handle, std::int64_t patience_ms)
      : handle_(handle), patience_ms_(patience_ms) {}
  sqlite3* handle_;
  const std::int64_t patience_ms_;
};

// A transaction. Rolls back unless committed.
class Transaction {
 public:
  // For changes: takes SQLite's write lock, waiting as long as the database's patience.
  static Result<Transaction> begin(Database& database);
  // Makes all reads during its lifetime see one state of the database, and takes locks once instead
  // of for each query. Nothing is to be changed, so nothing to be committed.
  static Result<Transaction> begin_reading(Database& database);
  Transaction(Transaction&& other) noexcept : database_(other.database_) {
    other.database_ = nullptr;
  }
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();

  Status commit();

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace modcache::store
