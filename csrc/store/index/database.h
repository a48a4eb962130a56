// SPDX-License-Identifier: Apache-2.0
//
// RAII over SQLite. database.cpp is the only file that includes sqlite3.h.
//
// Not thread-safe: the owner's mutex guards a Database and all made from it. That mutex must be
// held across fork (base/fork.h), so that a child never inherits SQLite in the middle of a call.
// The child then lets go of what it inherited (its locks are not its own) when it opens its
// first Database; the parent's objects must not be touched there.
//
// Failures: kCorruption (the file is broken or no database), kNoSpace, kBusy (somebody else holds
// a lock), kForeign (a link, a pipe or another's file stands where one of SQLite's files would),
// kIoError (the rest).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fs/file_system.h"

struct sqlite3;
struct sqlite3_stmt;

namespace modcache::store {

// Of the SQLite in this process, such as "3.40.1".
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

// How many queries this thread has run, on any database: what calls cost is counted by it.
std::uint64_t queries_run();

// One run of a Statement; resets it when it ends, so that no read transaction stays open.
class Query {
 public:
  explicit Query(Statement& statement);
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Parameters are bound in order.
  Query& bind(std::int64_t number);
  Query& bind_text(std::string_view text);
  Query& bind_blob(std::string_view blob);

  // True: a row is there. False: done.
  Result<bool> step();
  // For statements without rows.
  Status run();

  std::int64_t number(int column) const;
  // Text or blob; valid until the next step.
  std::string_view bytes(int column) const;

 private:
  sqlite3_stmt* statement_;
  int next_parameter_ = 1;
};

class Database {
 public:
  enum class Mode {
    kWrite,      // an existing database
    kCreate,     // a new file; nothing else has it open
    kRead,       // changes nothing, sees what others commit
    kImmutable,  // takes no lock; only for files that nobody changes
    kReadAlone,  // with its log, but without the memory that connections share; nobody else has it
    kMemory,     // a private one without a file
  };

  static Result<std::unique_ptr<Database>> open(fs::FileSystem& file_system,
                                                const std::string& path, Mode mode,
                                                std::int64_t patience_ms);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // One or more statements without parameters and results.
  Status execute(const std::string& sql);
  Result<Statement> prepare(std::string_view sql);
  // A query that gives one number; kNotFound when it gives no row.
  Result<std::int64_t> query_number(std::string_view sql);
  // Rows that the last statement changed.
  std::int64_t changes() const;
  // Empties the log; false: somebody reads from it. Waits for nobody.
  Result<bool> checkpoint();

 private:
  Database(sqlite3* handle, std::int64_t patience_ms)
      : handle_(handle), patience_ms_(patience_ms) {}
  sqlite3* handle_;
  const std::int64_t patience_ms_;
};

// Rolls back unless committed.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
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

// What is read while it lives is one state of the database, and its locks are taken once, not for
// each query. Changes nothing.
class ReadTransaction {
 public:
  static Result<ReadTransaction> begin(Database& database);
  ReadTransaction(ReadTransaction&& other) noexcept : database_(other.database_) {
    other.database_ = nullptr;
  }
  ReadTransaction& operator=(ReadTransaction&&) = delete;
  ~ReadTransaction();

 private:
  explicit ReadTransaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace modcache::store
