// SPDX-License-Identifier: Apache-2.0
#include "store/index/index.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/schema.h"
#include "store/index/tables.h"
#include "store/segment/location.h"

namespace modcache::store {
namespace {

constexpr char kWriteSettings[] =
    "PRAGMA journal_mode=WAL;"
    // A commit survives the death of the process without a sync; flush() syncs the WAL.
    "PRAGMA synchronous=NORMAL;"
    "PRAGMA journal_size_limit=4194304;"
    "PRAGMA temp_store=MEMORY;";
// A new database is synced as a whole before it is used, so it needs no journal.
constexpr char kCreateSettings[] = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;";

bool is_cleared_by_any(const std::vector<Clear>& clears, const Context& context,
                       std::string_view key, Sequence sequence) {
  return std::any_of(clears.begin(), clears.end(), [&](const Clear& clear) {
    return is_cleared_by(clear, context, key, sequence);
  });
}

}  // namespace

Index::Index() : fork_registration_(hold_across_fork(mutex_)) {}

Index::~Index() {
  {
    MutexLock lock(mutex_);
    tables_ = nullptr;
  }
  stop_holding_across_fork(fork_registration_);
}

Result<std::unique_ptr<Index>> Index::create(fs::FileSystem& file_system, const std::string& path) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  const auto mode = path.empty() ? Database::Mode::kMemory : Database::Mode::kCreate;
  MODCACHE_ASSIGN_OR_RETURN(auto database, Database::open(file_system, path, mode, 0));
  index->tables_ = std::make_unique<Tables>(std::move(database));
  Tables& tables = *index->tables_;
  MODCACHE_RETURN_IF_ERROR(tables.database().execute(kCreateSettings));
  MODCACHE_RETURN_IF_ERROR(create_schema(tables.database()));
  MODCACHE_RETURN_IF_ERROR(tables.prepare_for_writing());
  MODCACHE_RETURN_IF_ERROR(tables.prepare_for_reading());
  return index;
}

Result<std::unique_ptr<Index>> Index::open(fs::FileSystem& file_system, const std::string& path,
                                           Database::Mode mode, std::int64_t patience_ms) {
  std::unique_ptr<Index> index(new Index);
  MutexLock lock(index->mutex_);
  MODCACHE_ASSIGN_OR_RETURN(auto database, Database::open(file_system, path, mode, patience_ms));
  index->tables_ = std::make_unique<Tables>(std::move(database));
  Tables& tables = *index->tables_;
  MODCACHE_RETURN_IF_ERROR(check_schema(tables.database()));
  if (mode == Database::Mode::kWrite) {
    MODCACHE_RETURN_IF_ERROR(tables.database().execute(kWriteSettings));
    MODCACHE_RETURN_IF_ERROR(tables.prepare_for_writing());
  }
  MODCACHE_RETURN_IF_ERROR(tables.prepare_for_reading());
  return index;
}

Result<Location> Index::find(const Digest128& context, std::string_view key) {
  MutexLock lock(mutex_);
  return tables_->find(context, key);
}

Result<std::vector<std::optional<Location>>> Index::find_all(const Digest128& context,
                                                             std::span<const std::string_view> keys,
                                                             const std::vector<std::size_t>& rows) {
  std::vector<std::optional<Location>> locations(rows.size());
  MutexLock lock(mutex_);
  // One query needs no transaction around it.
  if (rows.size() == 1) {
    auto location = tables_->find(context, keys[rows.front()]);
    if (location.is_ok()) locations.front() = location.value();
    if (!location.is_ok() && !location.is_not_found()) return location.status();
    return locations;
  }
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, Transaction::begin_reading(tables_->database()));
  MODCACHE_ASSIGN_OR_RETURN(auto context_id, tables_->known_context_id(context));
  if (context_id == 0) return locations;
  Tables::SegmentsById segments;
  for (std::size_t place = 0; place < rows.size(); ++place) {
    MODCACHE_ASSIGN_OR_RETURN(locations[place],
                              tables_->find_in(context_id, keys[rows[place]], segments));
  }
  return locations;
}

Result<bool> Index::is_cleared(const Context& context, std::string_view key, Sequence sequence) {
  MutexLock lock(mutex_);
  MODCACHE_ASSIGN_OR_RETURN(auto clears, tables_->clears_after(sequence));
  return is_cleared_by_any(clears, context, key, sequence);
}

Result<std::int64_t> Index::commit(const std::vector<NewRow>& rows,
                                   std::vector<std::optional<Sequence>>* taken) {
  if (taken != nullptr) taken->assign(rows.size(), std::nullopt);
  if (rows.empty()) return 0;
  MutexLock lock(mutex_);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables_->begin_writing());
  Sequence first = rows.front().location.sequence;
  Sequence last = first;
  LastOffsets last_offsets;
  const auto begun_at = [](const NewRow& row) {
    return row.begun_at.value_or(row.location.sequence);
  };
  for (const NewRow& row : rows) {
    first = std::min(first, begun_at(row));
    last = std::max(last, row.location.sequence);
    last_offsets.note(row.location.segment, row.location.offset);
  }
  // A clear may have come since these entries were put.
  MODCACHE_ASSIGN_OR_RETURN(auto clears, tables_->clears_after(first));
  // The rows of a batch mostly share contexts and segments, so these are looked up once.
  std::unordered_map<Digest128, std::int64_t, Digest128Hash> contexts;
  std::map<std::uint64_t, std::int64_t> segments;
  std::int64_t replaced = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const NewRow& row = rows[i];
    if (is_cleared_by_any(clears, *row.context, row.key, begun_at(row))) continue;
    auto& context = contexts[row.context->digest];
    if (context == 0) {
      MODCACHE_ASSIGN_OR_RETURN(context, tables_->context_id(*row.context));
    }
    auto& segment = segments[row.location.segment];
    if (segment == 0) {
      MODCACHE_ASSIGN_OR_RETURN(segment, tables_->segment_id(row.location.segment));
    }
    MODCACHE_ASSIGN_OR_RETURN(auto instead_of, tables_->add_row(row, context, segment));
    if (instead_of.value_or(0) != 0 || row.replaces) ++replaced;
    if (taken != nullptr) (*taken)[i] = instead_of;
  }
  MODCACHE_RETURN_IF_ERROR(last_offsets.raise_in(*tables_));
  MODCACHE_RETURN_IF_ERROR(tables_->raise_last_sequence(last));
  MODCACHE_RETURN_IF_ERROR(transaction.commit());
  return replaced;
}

Result<bool> Index::replaces(const Digest128& context, std::string_view key, Sequence sequence) {
  MutexLock lock(mutex_);
  return tables_->replaces(context, key, sequence);
}

Result<bool> Index::drop(const Digest128& context, std::string_view key, Sequence sequence,
                         std::optional<std::uint64_t> with_tombstone) {
  MutexLock lock(mutex_);
  MODCACHE_ASSIGN_OR_RETURN(auto transaction, tables_->begin_writing());
  auto is_removed = tables_->remove_row(context, key, sequence);
  if (!is_removed.is_ok() || !is_removed.value()) return is_removed;
  if (with_tombstone) MODCACHE_RETURN_IF_ERROR(tables_->add_tombstone(*with_tombstone));
  MODCACHE_RETURN_IF_ERROR(transaction.commit());
  return true;
}

Result<std::int64_t> Index::count_entries() {
  MutexLock lock(mutex_);
  return tables_->count_entries();
}

Result<Sequence> Index::last_sequence() {
  MutexLock lock(mutex_);
  return tables_->last_sequence();
}

Result<std::uint64_t> Index::last_offset(std::uint64_t segment) {
  MutexLock lock(mutex_);
  return tables_->last_offset(segment);
}

Result<bool> Index::checkpoint() {
  MutexLock lock(mutex_);
  return tables_->database().checkpoint();
}

}  // namespace modcache::store
