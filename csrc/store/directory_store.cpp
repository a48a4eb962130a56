// SPDX-License-Identifier: Apache-2.0
//
// The reading half of DirectoryStore, and its beginning and end.
#include "store/directory_store.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/without_throwing.h"
#include "store/found_entry.h"
#include "store/index/recovery.h"
#include "store/notes.h"
#include "store/pack/pack_store.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kQueueLimitBytes = 64 << 20;
// How often calls look whether the directory is still the one that was opened.
constexpr std::int64_t kAttachedCheckMs = 100;

}  // namespace

Result<std::unique_ptr<Store>> Store::open(fs::FileSystem& file_system, StoreOptions options) {
  if (options.directory.empty()) return Status::invalid_argument("the directory's name is empty");
  auto info = file_system.info(options.directory);
  if (info.is_ok() && !info.value().is_directory) return open_pack(file_system, options);
  auto store = std::make_unique<DirectoryStore>(file_system, std::move(options));
  MODCACHE_RETURN_IF_ERROR(store->start());
  return std::unique_ptr<Store>(std::move(store));
}

DirectoryStore::DirectoryStore(fs::FileSystem& file_system, StoreOptions options)
    : options_(std::move(options)),
      directory_(Directory::at(file_system, options_.directory)),
      readers_(directory_, options_.read_via),
      budget_(directory_, options_.disk_budget_bytes),
      queue_(kQueueLimitBytes, budget_.segment_bytes() / 2),
      segments_(directory_, budget_.segment_bytes()) {}

Status DirectoryStore::start() {
  auto opened = open_directory(directory_, options_);
  if (!opened.is_ok()) return opened.status();
  opened_ = std::move(opened).value();
  auto given = directory_.file_system().info(options_.directory);
  if (given.is_ok()) given_ = given.value();
  index_ = std::make_unique<SharedIndex>(directory_, opened_.control.get(), opened_.database,
                                         options_.read_via, !is_read_only());
  if (is_read_only()) return Status::ok();
  budget_.measure();
  prepare_index();
  budget_.measure();
  seen_leave_requests_ = opened_.control->leave_requests();
  if (options_.make_policy) policy_ = options_.make_policy(index_->policy_state());
  return without_throwing([this] {
    writer_ = std::thread([this] { write_until_stopped(); });
    reclaimer_ = std::thread([this] { reclaim_until_stopped(); });
    return Status::ok();
  });
}

DirectoryStore::~DirectoryStore() {
  queue_.stop();
  if (writer_.joinable()) writer_.join();
  stop_reclaiming();
  if (is_read_only() || !is_attached()) return;
  MutexLock lock(write_mutex_);
  auto directory_lock = DirectoryLock::take(*opened_.lock_file, 0);
  // If nobody else is at it, the database is left complete in itself.
  if (directory_lock.is_ok()) checkpoint_if_larger(0);
}

std::uint64_t DirectoryStore::counted_removals() const {
  return opened_.control == nullptr ? 0 : opened_.control->removals();
}

std::uint64_t DirectoryStore::removals() const {
  return opened_.control == nullptr ? uncounted_removals_ : opened_.control->removals();
}

// What was put here before another process cleared it is gone, although it still waits here.
bool DirectoryStore::was_cleared(const QueuedPut& put) {
  if (put.clears == opened_.control->clears()) return false;
  auto is_cleared = opened_.reader->is_cleared(*put.context, put.key, put.sequence);
  return !is_cleared.is_ok() || is_cleared.value();
}

QueuedPutPtr DirectoryStore::find_queued(const EntryId& id) {
  QueuedPutPtr put = queue_.find(id.context.digest, id.key);
  return put == nullptr || was_cleared(*put) ? nullptr : put;
}

Result<StoredRecord> DirectoryStore::read_record_at(const Location& location, const EntryId& id) {
  auto reader = readers_.get(location.segment);
  if (reader.is_not_found()) return Status::corruption("a segment is gone");
  if (!reader.is_ok()) return reader.status();
  return read_record(std::move(reader).value(), location, id);
}

Result<std::unique_ptr<FoundEntry>> DirectoryStore::find(const EntryId& id) {
  auto found = find_of_any_age(id);
  const Digest128 address = address_of(id.context.digest, id.key);
  if (found.is_ok() && outdated_.covers(address, found.value()->sequence())) {
    found = Status::not_found("replaced");
  }
  if (options_.max_age_us > 0 && found.is_ok() &&
      found.value()->stored_at_us() < expired_before_us()) {
    found = Status::not_found("too old");
  }
  if (policy_ != nullptr) {
    note_lookup(address, found.is_ok() ? found.value()->sequence() : 0);
  }
  return found;
}

Result<std::unique_ptr<FoundEntry>> DirectoryStore::find_of_any_age(const EntryId& id) {
  if (is_read_only()) let_go_of_gone();  // no thread does
  if (QueuedPutPtr put = find_queued(id)) return queued_entry(std::move(put));
  const std::uint64_t removals = counted_removals();
  const Digest128 address = address_of(id.context.digest, id.key);
  if (const auto known = locations_->find(address, removals, is_still_there_)) {
    auto record = read_record_at(location_of(*known), id);
    if (record.is_ok()) return stored_entry(std::move(record).value());
    // The place may be another's with the same address, or outdated; the index knows.
    locations_->remove(address);
  }
  check_attached();
  if (auto found = find_shared(id, address, removals)) return *std::move(found);
  return find_stored(id, address, removals);
}

// Of what this process knew before something was removed; false where only the database can tell.
bool DirectoryStore::is_still_there(const Digest128& address, std::uint64_t segment,
                                    std::uint64_t offset, Sequence sequence) const {
  SharedIndex::Slot slot;
  return is_attached() && index_->find(address, slot) == SharedIndex::Answer::kFound &&
         slot.sequence == sequence && slot.segment == segment && slot.offset == offset;
}

// None: only the database can tell.
std::optional<Result<std::unique_ptr<FoundEntry>>> DirectoryStore::find_shared(
    const EntryId& id, const Digest128& address, std::uint64_t removals) {
  if (!is_attached()) return std::nullopt;
  SharedIndex::Slot slot;
  const SharedIndex::Answer answer = index_->find(address, slot);
  if (answer == SharedIndex::Answer::kUnknown) return std::nullopt;
  if (answer == SharedIndex::Answer::kAbsent) return Status::not_found();
  auto reader = readers_.get(slot.segment);
  if (!reader.is_ok()) return std::nullopt;
  auto record = store::read_record_at(std::move(reader).value(), slot.offset, slot.sequence, id);
  // It moved meanwhile, is another's with the same tag, or is broken.
  if (!record.is_ok()) return std::nullopt;
  remember(address, slot.segment, record.value(), removals);
  return stored_entry(std::move(record).value());
}

void DirectoryStore::remember(const Digest128& address, std::uint64_t segment,
                              const StoredRecord& record, std::uint64_t removals) {
  locations_->add(address, known_record(segment, record, *locations_), removals);
}

Result<std::unique_ptr<FoundEntry>> DirectoryStore::find_stored(const EntryId& id,
                                                                const Digest128& address,
                                                                std::uint64_t removals) {
  Status failure;
  Location failed;
  while (true) {
    auto location = opened_.reader->find(id.context.digest, id.key);
    if (!location.is_ok()) return as_index_failure(location.status());
    // Asked twice and still broken: it neither went away between the two looks, nor was it moved.
    if (location.value().is_same_place(failed)) return failure;
    auto record = read_record_at(location.value(), id);
    if (record.is_ok()) {
      remember(address, location.value().segment, record.value(), removals);
      return stored_entry(std::move(record).value());
    }
    if (record.status().code() != StatusCode::kCorruption) return record.status();
    failure = record.status();
    failed = location.value();
  }
}

// A broken database is not a broken entry.
Status DirectoryStore::as_index_failure(const Status& status) {
  if (status.code() != StatusCode::kCorruption) return status;
  detach_broken_database();
  return Status::io_error("'" + directory_.database_path() + "' is damaged (" + status.message() +
                          "); it is made anew from the segments when the directory is opened next");
}

bool DirectoryStore::is_current(const EntryId& id, Sequence sequence) {
  if (const QueuedPutPtr put = find_queued(id)) return put->sequence == sequence;
  const std::uint64_t removals = counted_removals();
  const Digest128 address = address_of(id.context.digest, id.key);
  if (outdated_.covers(address, sequence)) return false;
  const auto known = locations_->find(address, removals, is_still_there_);
  if (known && known->sequence == sequence) return true;
  SharedIndex::Slot slot;
  const SharedIndex::Answer answer = index_->find(address, slot);
  if (answer != SharedIndex::Answer::kUnknown) {
    return answer == SharedIndex::Answer::kFound && slot.sequence == sequence;
  }
  auto location = opened_.reader->find(id.context.digest, id.key);
  return location.is_ok() && location.value().sequence == sequence;
}

Result<std::string> DirectoryStore::find_note(std::string_view about) {
  return store::find_note(directory_, about);
}

Status DirectoryStore::keep_note(std::string_view about, std::string_view text) {
  if (!directory_.file_system().is_writable(directory_.path())) return Status::ok();
  return store::keep_note(directory_, about, text, budget_.most_notes_bytes());
}

Status DirectoryStore::clear_notes() { return store::clear_notes(directory_); }

Result<Totals> DirectoryStore::totals() {
  check_attached();
  auto entries = opened_.reader->count_entries();
  if (!entries.is_ok()) return as_index_failure(entries.status());
  auto size_bytes = directory_.size_bytes();
  if (!size_bytes.is_ok()) return size_bytes.status();
  return Totals{entries.value(), static_cast<std::int64_t>(size_bytes.value())};
}

bool DirectoryStore::is_known_detached() const {
  if (!is_attached_.load(std::memory_order_relaxed)) return true;
  return opened_.control != nullptr && opened_.control->epoch() != opened_.epoch;
}

bool DirectoryStore::check_attached() const {
  if (is_known_detached()) return false;
  const std::int64_t now = steady_now_ms();
  if (now - attached_checked_ms_.load(std::memory_order_relaxed) < kAttachedCheckMs) return true;
  attached_checked_ms_.store(now, std::memory_order_relaxed);
  fs::FileSystem& file_system = directory_.file_system();
  const auto is_file = [&](const std::string& path, const fs::FileInfo& expected) {
    auto info = file_system.info(path);
    return info.is_ok() ? info.value().is_same_file(expected) : expected.inode == 0;
  };
  // The path that was given may be a link that leads elsewhere by now.
  bool is_same =
      is_file(options_.directory, given_) && is_file(directory_.database_path(), opened_.database);
  if (opened_.control != nullptr) {
    is_same = is_same && is_file(directory_.control_path(), opened_.control->identity());
  }
  if (opened_.is_snapshot) {
    // Somebody writes again.
    auto wal = file_system.info(directory_.wal_path());
    const std::uint64_t size_bytes = wal.is_ok() ? wal.value().size_bytes : 0;
    is_same = is_same && size_bytes == opened_.log_size_bytes;
  }
  if (!is_same) is_attached_.store(false, std::memory_order_relaxed);
  return is_same;
}

// The next to open the directory finds no database and makes it anew.
void DirectoryStore::detach_broken_database() {
  if (!is_attached() || is_read_only()) {
    is_attached_.store(false, std::memory_order_relaxed);
    return;
  }
  MutexLock lock(write_mutex_);
  auto directory_lock = DirectoryLock::take(*opened_.lock_file, options_.patience_ms);
  attached_checked_ms_.store(0, std::memory_order_relaxed);
  // Another process may have replaced it already; a whole one must not be removed.
  const bool is_ours = directory_lock.is_ok() && check_attached();
  is_attached_.store(false, std::memory_order_relaxed);
  if (!is_ours) return;
  opened_.control->renew_epoch();
  (void)remove_database(directory_);  // failing, it is found broken again
}

}  // namespace modcache::store
