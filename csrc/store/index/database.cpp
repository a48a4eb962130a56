// SPDX-License-Identifier: Apache-2.0
#include "store/index/database.h"

#include <sqlite3.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache::store {
namespace {

thread_local std::uint64_t queries_of_thread = 0;

Status to_status(int code, sqlite3* handle) {
  const char* text = handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(code);
  std::string message = "SQLite: " + std::string(text) + " (" + std::to_string(code) + ")";
  switch (code & 0xff) {
    case SQLITE_ERROR:  // all SQL is ours, so it is the tables that are not
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Status::corruption(std::move(message));
    case SQLITE_FULL: return Status::no_space(std::move(message));
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Status::busy(std::move(message));
    default: return Status::io_error(std::move(message));
  }
}

// A connection that only reads may see the log's index half written while nobody writes. Mostly the
// writer finished in between, and another look succeeds. If the writer died, no look does.
constexpr int kMostLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks{1};

bool is_half_written(int code) {
  return code == SQLITE_READONLY_RECOVERY || code == SQLITE_READONLY_CANTINIT;
}

template <typename Look>
int until_whole(const Look& look) {
  int code = look();
  for (int looks = 1; is_half_written(code) && looks < kMostLooks; ++looks) {
    std::this_thread::sleep_for(kBetweenLooks);
    code = look();
  }
  return code;
}

// The connections of this process, and those inherited from the processes that it was forked from.
struct Connections {
  Mutex mutex;  // also held while opening and closing, as SQLite has state beyond connections
  std::map<sqlite3*, std::uint64_t> generations MODCACHE_GUARDED_BY(mutex);
};

Connections& connections() {
  static Connections* const instance = [] {
    auto* created = new Connections;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

// Closes the connections inherited by fork. SQLite counts a process's locks per file, and POSIX
// locks do not cross fork: inherited connections would make SQLite believe that this process holds
// locks which only its parent has. Closing them touches no file: nothing is in progress (the
// owners' mutexes were held across fork), no checkpoint is made, and releasing locks that this
// process does not have leaves the parent's alone.
void close_inherited(Connections& state) MODCACHE_REQUIRES(state.mutex) {
  for (auto entry = state.generations.begin(); entry != state.generations.end();) {
    if (entry->second == fork_generation()) {
      ++entry;
      continue;
    }
    sqlite3* handle = entry->first;
    while (sqlite3_stmt* statement = sqlite3_next_stmt(handle, nullptr)) {
      sqlite3_finalize(statement);
    }
    sqlite3_close_v2(handle);
    entry = state.generations.erase(entry);
  }
}

std::string uri_of(const std::string& path, Database::Mode mode) {
  // Uses an empty authority, as a path may begin with two slashes, for instance below "/".
  std::string uri = path.rfind('/', 0) == 0 ? "file://" : "file:";
  for (const char c : path) {
    const bool is_special = c == '%' || c == '?' || c == '#';
    static constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (is_special) {
      uri += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      uri += c;
    }
  }
  if (mode == Database::Mode::kRead) uri += "?mode=ro&readonly_shm=1";
  if (mode == Database::Mode::kImmutable) uri += "?mode=ro&immutable=1";
  if (mode == Database::Mode::kReadAlone) uri += "?mode=ro&vfs=unix-none";
  return uri;
}

#ifdef SQLITE_OPEN_NOFOLLOW
constexpr int kNoFollow = SQLITE_OPEN_NOFOLLOW;
#else
constexpr int kNoFollow = 0;
#endif

int flags_of(Database::Mode mode) {
  constexpr int kAlways =
      SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | kNoFollow;
  switch (mode) {
    case Database::Mode::kWrite: return kAlways | SQLITE_OPEN_READWRITE;
    case Database::Mode::kCreate:
    case Database::Mode::kMemory: return kAlways | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    case Database::Mode::kRead:
    case Database::Mode::kReadAlone:
    case Database::Mode::kImmutable: return kAlways | SQLITE_OPEN_READONLY;
  }
  return kAlways;
}

// Returns kForeign when SQLite must not open these files. SQLite opens them itself, would wait for
// a pipe, and would write into a stranger's file with one of these names.
Status check_files_of(fs::FileSystem& file_system, const std::string& path, Database::Mode mode) {
  if (mode == Database::Mode::kMemory) return Status::ok();
  const bool is_written = mode == Database::Mode::kWrite || mode == Database::Mode::kCreate;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const auto info = file_system.name_info(path + suffix);
    if (!info.is_ok()) continue;  // missing, or SQLite fails by itself
    // Even when reading, SQLite would take a stranger's journal for the rest of a transaction.
    const bool must_be_own = is_written || std::string_view(suffix) == "-journal";
    MODCACHE_RETURN_IF_ERROR(must_be_own ? fs::check_is_own_file(path + suffix, info.value())
                                         : fs::check_is_file(path + suffix, info.value()));
  }
  return Status::ok();
}

}  // namespace

std::string_view sqlite_version() { return sqlite3_libversion(); }

Statement::Statement(Statement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

std::uint64_t queries_run() { return queries_of_thread; }

Query::Query(Statement& statement) : statement_(statement.statement_) { ++queries_of_thread; }

Query::Query(Database& database, std::string_view sql) : statement_(nullptr) {
  ++queries_of_thread;
  auto statement = database.prepare(sql);
  status_ = statement.status();
  if (statement.is_ok()) own_ = std::move(statement).value();
  statement_ = own_.statement_;
}

Query::~Query() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Query& Query::bind(std::int64_t number) {
  sqlite3_bind_int64(statement_, next_parameter_++, number);
  return *this;
}

Query& Query::bind_text(std::string_view text) {
  sqlite3_bind_text64(statement_, next_parameter_++, text.data(), text.size(), SQLITE_STATIC,
                      SQLITE_UTF8);
  return *this;
}

Query& Query::bind_blob(std::string_view blob) {
  // A null pointer would bind NULL, which equals nothing, not even itself.
  sqlite3_bind_blob64(statement_, next_parameter_++, blob.data() != nullptr ? blob.data() : "",
                      blob.size(), SQLITE_STATIC);
  return *this;
}

Result<bool> Query::step() {
  MODCACHE_RETURN_IF_ERROR(status_);
  const int code = until_whole([this] { return sqlite3_step(statement_); });
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  sqlite3* handle = sqlite3_db_handle(statement_);
  return to_status(sqlite3_extended_errcode(handle), handle);
}

Status Query::run() { return step().status(); }

std::int64_t Query::number(int column) const { return sqlite3_column_int64(statement_, column); }

std::string_view Query::bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return {};
  return {static_cast<const char*>(data), static_cast<std::size_t>(size)};
}

Result<std::unique_ptr<Database>> Database::open(fs::FileSystem& file_system,
                                                 const std::string& path, Mode mode,
                                                 std::int64_t patience_ms) {
  Connections& state = connections();
  MutexLock lock(state.mutex);
  close_inherited(state);
  MODCACHE_RETURN_IF_ERROR(check_files_of(file_system, path, mode));
  sqlite3* handle = nullptr;
  const std::string uri = mode == Mode::kMemory ? ":memory:" : uri_of(path, mode);
  const int code = sqlite3_open_v2(uri.c_str(), &handle, flags_of(mode), file_system.sqlite_vfs());
  // Check again: the files that SQLite has open now were there before this check, and nothing has
  // been written to them yet.
  const Status status =
      code == SQLITE_OK ? check_files_of(file_system, path, mode) : to_status(code, handle);
  if (!status.is_ok()) {
    sqlite3_close_v2(handle);
    return status;
  }
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, static_cast<int>(patience_ms));
  // Otherwise the last connection would checkpoint and remove the WAL. SQLite's idea of which one
  // is the last can be wrong when a process has a second copy of SQLite.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  // The file may be damaged, so its schema is not trusted.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  // Exclusive locking keeps the index of the log in the heap.
  if (mode == Mode::kReadAlone) {
    sqlite3_exec(handle, "PRAGMA locking_mode=EXCLUSIVE", nullptr, nullptr, nullptr);
  }
  state.generations.emplace(handle, fork_generation());
  return std::unique_ptr<Database>(new Database(handle, patience_ms));
}

Database::~Database() {
  Connections& state = connections();
  MutexLock lock(state.mutex);
  state.generations.erase(handle_);
  sqlite3_close_v2(handle_);
}

Status Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return to_status(sqlite3_extended_errcode(handle_), handle_);
  return Status::ok();
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = until_whole([&] {
    return sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                              SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  });
  if (code != SQLITE_OK) return to_status(sqlite3_extended_errcode(handle_), handle_);
  return Statement(statement);
}

Status Database::prepare(std::initializer_list<std::pair<Statement*, std::string>> statements) {
  for (const auto& [statement, sql] : statements) {
    MODCACHE_ASSIGN_OR_RETURN(auto prepared, prepare(sql));
    *statement = std::move(prepared);
  }
  return Status::ok();
}

Result<std::int64_t> Database::query_number(std::string_view sql) {
  Query query(*this, sql);
  MODCACHE_ASSIGN_OR_RETURN(auto has_row, query.step());
  if (!has_row) return Status::not_found("no row");
  return query.number(0);
}

std::int64_t Database::changes() const { return sqlite3_changes64(handle_); }

Result<bool> Database::checkpoint() {
  sqlite3_busy_timeout(handle_, 0);
  const int code =
      sqlite3_wal_checkpoint_v2(handle_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  sqlite3_busy_timeout(handle_, static_cast<int>(patience_ms_));
  if (code == SQLITE_OK) return true;
  const Status status = to_status(sqlite3_extended_errcode(handle_), handle_);
  if (status.code() == StatusCode::kBusy) return false;
  return status;
}

Result<Transaction> Transaction::begin(Database& database) {
  MODCACHE_RETURN_IF_ERROR(database.execute("BEGIN IMMEDIATE"));
  return Transaction(&database);
}

Result<Transaction> Transaction::begin_reading(Database& database) {
  MODCACHE_RETURN_IF_ERROR(database.execute("BEGIN"));
  return Transaction(&database);
}

// A failed rollback means that SQLite has already rolled back by itself.
Transaction::~Transaction() {
  if (database_ != nullptr) (void)database_->execute("ROLLBACK");
}

Status Transaction::commit() {
  MODCACHE_RETURN_IF_ERROR(database_->execute("COMMIT"));
  database_ = nullptr;
  return Status::ok();
}

}  // namespace modcache::store
