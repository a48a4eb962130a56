// SPDX-License-Identifier: Apache-2.0
#include "cache/disk_tier.h"

#include <cstring>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "cache/entry_header.h"
#include "store/control/directory_mode.h"

namespace modcache::cache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPatienceMs = 400;
constexpr std::int64_t kMostAgeSeconds = 100LL * 366 * 24 * 3600;
// Another process may make the directory that a reader found missing.
constexpr auto kLookAgainAfter = std::chrono::milliseconds(500);

}  // namespace

DiskTier::DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
                   fs::FileSystem& file_system)
    : settings_(settings),
      format_(format),
      stats_(stats),
      file_system_(file_system),
      fork_generation_(fork_generation()),
      fork_ticket_(hold_across_fork(mutex_)) {}

DiskTier::~DiskTier() {
  stop_holding_across_fork(fork_ticket_);
  MutexLock lock(mutex_);
  abandon_after_fork();
}

// The parent's connection and locks must not be closed from here, so its Store is leaked on
// purpose: an owner that is never destroyed keeps it.
void DiskTier::abandon_after_fork() {
  if (fork_generation_ == fork_generation()) return;
  fork_generation_ = fork_generation();
  if (store_ != nullptr) new StorePtr(std::move(store_));  // NOLINT: leaked, see above
  store_ = nullptr;
}

DiskTier::StorePtr DiskTier::open_or_null() {
  MutexLock lock(mutex_);
  abandon_after_fork();
  return store_;
}

DiskTier::StorePtr DiskTier::store(Access access) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (settings_.disk_bytes == 0 || Clock::now() < alone_until_) return nullptr;
  if (store_ != nullptr && !store_->is_attached()) store_ = nullptr;
  if (store_ == nullptr) store_ = open_store(access);
  return store_;
}

DiskTier::StorePtr DiskTier::open_store(Access access) {
  if (settings_.disk_bytes == 0) return nullptr;
  const auto now = Clock::now();
  if (now < alone_until_ || (access == Access::kRead && now < missing_until_)) return nullptr;
  // A directory that is there is opened alike for all calls: SQLite cannot have one connection of
  // a process that may write and another that may not.
  if (access == Access::kRead && file_system_.info(settings_.dir).is_not_found()) {
    missing_until_ = now + kLookAgainAfter;
    return nullptr;
  }
  // A call asked for the mode of the directory that was configured a moment before.
  const auto mode = store::directory_mode(file_system_, settings_.dir);
  if (mode.is_ok() && mode.value() == store::DirectoryMode::kOff) {
    why_alone_ = "its mode is off";
    return nullptr;
  }
  store::StoreOptions options;
  options.directory = settings_.dir;
  options.disk_budget_bytes = settings_.disk_bytes;
  options.make_policy = [kind = settings_.policy](void* shared_state) {
    return policy::make_policy(kind, shared_state);
  };
  options.durability = settings_.durability;
  options.read_via = settings_.io;
  options.patience_ms = kPatienceMs;
  options.max_age_us = settings_.max_age_s > kMostAgeSeconds ? 0 : settings_.max_age_s * 1'000'000;
  options.on_evicted = [&stats = stats_](std::int64_t entries) {
    stats.add(Counter::kEvicted, entries);
  };
  options.on_not_kept = [&stats = stats_](std::int64_t entries) {
    stats.add(Counter::kNotKept, entries);
  };
  options.is_strict = settings_.strict;
  options.on_foreign_file = [&stats = stats_, dir = settings_.dir](const Status& foreign) {
    stats.add(Counter::kErrors);
    log_once(LogLevel::kWarning, foreign.message(),
             "in the cache directory '" + dir + "': " + foreign.message() +
                 "; models run on, modcache doctor '" + dir + "' says more");
  };
  // The store may outlive this tier for a moment, but not the counters.
  options.on_write_error = [&stats = stats_, dir = settings_.dir](const Status& status,
                                                                  std::int64_t entries) {
    stats.add(Counter::kErrors, entries);
    log(LogLevel::kWarning, "write:" + dir,
        "writing to '" + dir + "' failed: " + status.message() +
            "; the models run on, these results are not kept");
  };
  auto opened = store::Store::open(file_system_, std::move(options));
  if (opened.is_ok()) return StorePtr(std::move(opened).value());
  alone_until_ = Clock::now() + kBackoff;
  why_alone_ = opened.status().message();
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, "open:" + settings_.dir,
      "the cache directory '" + settings_.dir + "' cannot be used: " + opened.status().message() +
          "; models run without it, it is tried again in 30 s");
  return nullptr;
}

void DiskTier::leave_alone(const Status& failure) {
  MutexLock lock(mutex_);
  alone_until_ = Clock::now() + kBackoff;
  why_alone_ = failure.message();
}

void DiskTier::report(const Status& status, const char* during) {
  if (status.is_ok() || status.is_not_found()) return;
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, std::string(during) + ":" + settings_.dir,
      "the cache directory '" + settings_.dir + "', while " + during + ": " + status.message());
}

DiskTier::Found DiskTier::get(const store::EntryId& id, Access access) {
  const StorePtr store = this->store(access);
  if (store == nullptr) return {};
  Found result;
  result.removals = store->removals();
  const auto started = Clock::now();
  auto found = store->find(id);
  if (found.is_not_found()) return {};

  Status broken = found.status();
  if (broken.is_ok()) {
    const store::FoundEntry& stored = *found.value();
    result.sequence = stored.sequence();
    std::string_view signature;
    std::string_view value_header;
    std::string_view sample;
    if (unpack_header(stored.header(), signature, value_header, &sample)) {
      auto value = format_.read(value_header, stored);
      if (value.is_ok()) {
        result.entry = std::make_shared<const Entry>(
            Entry{std::move(value).value(), std::string(signature), stored.run_us(),
                  store->has_ageing_entries() ? stored.stored_at_us() : kAgeless,
                  stored.confirmation(), InputSample(sample)});
        return result;
      }
      broken = value.status();
    } else {
      broken = Status::corruption("an entry's header is too short");
    }
  }
  refuse(id, result.sequence, broken, access);
  const bool is_entrys_fault = broken.code() == StatusCode::kCorruption;
  if (!is_entrys_fault && Clock::now() - started > kStall) leave_alone(broken);
  return {};
}

bool DiskTier::contains(const store::EntryId& id) {
  const StorePtr store = this->store(Access::kRead);
  return store != nullptr && store->find(id).is_ok();
}

std::optional<Sighting> DiskTier::look(const store::EntryId& id) {
  const StorePtr store = this->store(Access::kRead);
  if (store == nullptr) return std::nullopt;
  auto found = store->find(id);
  if (!found.is_ok()) return std::nullopt;
  const store::FoundEntry& stored = *found.value();
  std::string_view signature;
  std::string_view value_header;
  std::string_view sample;
  if (!unpack_header(stored.header(), signature, value_header, &sample)) return std::nullopt;
  Sighting seen;
  seen.signature = std::string(signature);
  seen.sample = InputSample(sample);
  seen.size_bytes = static_cast<std::int64_t>(stored.payload_size_bytes());
  seen.run_us = stored.run_us();
  seen.stored_at_us = stored.stored_at_us();
  return seen;
}

store::Sequence DiskTier::put(const store::EntryId& id, const Entry& entry, bool replaces) {
  const StorePtr store = this->store(Access::kWrite);
  if (store == nullptr) return 0;
  const auto started = Clock::now();
  Written written = entry.value->write(settings_.codec);
  const std::uint64_t size_bytes = written.payload.size_bytes;
  auto sequence = store->put(store::Put{
      id, pack_header(entry.signature, written.header, entry.sample.bytes()),
      std::move(written.payload), entry.run_us.value_or(0), replaces, entry.confirmation});
  report_store(sequence.status(), started);
  if (!sequence.is_ok()) return 0;
  if (sequence.value() == 0) count_not_kept(1, size_bytes);
  return sequence.value();
}

// The directory's own files take room as well, and no more than half of it leaves for one entry.
void DiskTier::count_not_kept(std::int64_t entries, std::uint64_t largest_bytes) {
  stats_.add(Counter::kNotKept, entries);
  if (largest_bytes <= settings_.disk_bytes / 2) return;
  log_once(LogLevel::kWarning, "too-large:" + settings_.dir,
           "a result of " + std::to_string(largest_bytes) + " bytes is too large for '" +
               settings_.dir + "' (option disk: " + std::to_string(settings_.disk_bytes) +
               "): one of more than half of that is kept only while so much is free");
}

void DiskTier::report_store(const Status& status, Clock::time_point started) {
  if (status.is_ok()) return;
  report(status, "storing");
  // An entry that is too large is no fault of the directory, however long it took to write it down.
  const bool is_entrys_fault = status.code() == StatusCode::kInvalidArgument;
  if (!is_entrys_fault && Clock::now() - started > kStall) leave_alone(status);
}

std::uint64_t DiskTier::removals(Access access) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (store_ != nullptr && !store_->is_attached()) store_ = nullptr;
  if (store_ == nullptr) store_ = open_store(access);
  if (store_ != nullptr) last_removals_ = store_->removals();
  return last_removals_;
}

bool DiskTier::is_current(const store::EntryId& id, const Known& known) {
  const StorePtr store = this->store(Access::kRead);
  return store != nullptr && known.sequence != 0 &&
         store::are_of_one_source(known.removals, store->removals()) &&
         store->is_current(id, known.sequence);
}

std::optional<std::string> DiskTier::find_note(std::string_view about, Access access) {
  const StorePtr store = this->store(access);
  if (store == nullptr) return std::nullopt;
  auto text = store->find_note(about);
  if (!text.is_ok()) return std::nullopt;
  return std::move(text).value();
}

void DiskTier::keep_note(std::string_view about, std::string_view text) {
  const StorePtr store = this->store(Access::kWrite);
  if (store != nullptr) report(store->keep_note(about, text), "keeping a note");
}

// Whoever clears wants it more than others want to be spared the delay; but not again and again.
DiskTier::StorePtr DiskTier::store_to_clear(std::string& why_not) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  const auto now = Clock::now();
  if (now >= alone_until_ || now >= no_clear_until_) {
    alone_until_ = {};
    if (store_ != nullptr && !store_->is_attached()) store_ = nullptr;
    if (store_ == nullptr) store_ = open_store(Access::kWrite);
    no_clear_until_ = alone_until_;
    if (store_ != nullptr) return store_;
  }
  why_not = why_alone_;
  return nullptr;
}

std::int64_t DiskTier::clear(const store::ClearFilter& filter) {
  // No directory is made in order to be cleared.
  if (settings_.disk_bytes == 0 || file_system_.info(settings_.dir).is_not_found()) return 0;
  std::string why_not;
  const StorePtr store = store_to_clear(why_not);
  if (store == nullptr) {
    report(
        Status::io_error("it was not cleared, and what is in it will be found again: " + why_not),
        "clearing");
    return 0;
  }
  const auto started = Clock::now();
  auto removed = store->clear(filter);
  report(removed.status(), "clearing");
  if (!removed.is_ok() && Clock::now() - started > kStall) {
    leave_alone(removed.status());
    MutexLock lock(mutex_);
    no_clear_until_ = alone_until_;
  }
  if (removed.is_ok() && filter.covers_everything()) {
    report(store->clear_notes(), "clearing notes");
  }
  return removed.is_ok() ? removed.value() : 0;
}

bool DiskTier::flush() {
  const StorePtr store = open_or_null();
  if (store == nullptr) return true;
  const Status status = store->flush();
  report(status, "flushing");
  return status.is_ok();
}

store::Totals DiskTier::totals(bool may_open) {
  const StorePtr store = may_open ? this->store(Access::kRead) : open_or_null();
  if (store == nullptr) return {};
  auto totals = store->totals();
  report(totals.status(), "counting");
  return totals.is_ok() ? totals.value() : store::Totals{};
}

void DiskTier::close() {
  StorePtr closing;
  MutexLock lock(mutex_);
  abandon_after_fork();
  closing = std::move(store_);
  store_ = nullptr;
}

}  // namespace modcache::cache
