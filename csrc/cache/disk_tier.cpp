// SPDX-License-Identifier: Apache-2.0
#include "cache/disk_tier.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "cache/entry_header.h"
#include "cache/read_entries.h"
#include "store/entry/own_part.h"

namespace modcache::cache {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

DiskTier::DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
                   std::shared_ptr<StoreHandle> store, fs::FileSystem& file_system,
                   store::DirectoryCounters* counters)
    : settings_(settings),
      format_(format),
      stats_(stats),
      file_system_(file_system),
      handle_(std::move(store)),
      counters_(counters) {
  handle_->add_listener(stats_);
}

DiskTier::DiskTier(const Settings& settings, const ValueFormat& format, Stats& stats,
                   fs::FileSystem& file_system, store::DirectoryCounters* counters)
    : DiskTier(settings, format, stats, std::make_shared<StoreHandle>(settings, file_system),
               file_system, counters) {}

DiskTier::~DiskTier() { handle_->remove_listener(stats_); }

StorePtr DiskTier::open(Access access) {
  StorePtr store = handle_->get(access);
  if (store != nullptr && access == Access::kWrite && counters_ != nullptr) attach_counters(*store);
  return store;
}

void DiskTier::open_if_there() {
  const StorePtr store = handle_->open_if_there();
  if (store != nullptr && counters_ != nullptr) attach_counters(*store);
}

// Another store is that of another directory, or of one that was removed and made again.
void DiskTier::attach_counters(const store::Store& store) {
  if (counted_in_.load(std::memory_order_relaxed) == &store || store.is_read_only()) return;
  const std::int64_t now_ms = steady_now_ms();
  if (now_ms < attach_again_at_ms_.load(std::memory_order_relaxed)) return;
  if (counted_in_.exchange(nullptr) != nullptr) counters_->detach();
  if (counters_->attach()) counted_in_ = &store;
  attach_again_at_ms_ = now_ms + std::chrono::milliseconds(StoreHandle::kBackoff).count();
}

void DiskTier::report(const Status& status, const char* during) {
  if (status.is_ok() || status.is_not_found()) return;
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, std::string(during) + ":" + settings_.dir,
      "the cache directory '" + settings_.dir + "', while " + during + ": " + status.message());
}

// Caches with other settings may share the store.
store::EntryIds DiskTier::ids_of(const Keys& keys) const {
  store::EntryIds ids = keys.ids();
  ids.max_age_us = max_age_us(settings_);
  return ids;
}

void DiskTier::find(const Keys& keys, Access access, OnMiss, Found& found) {
  if (auto rows = find_rows(keys, access)) found.add_rows(*std::move(rows));
}

std::optional<FoundRows> DiskTier::find_rows(const Keys& keys, Access access) {
  const StorePtr store = open(access);
  if (store == nullptr) return std::nullopt;
  const std::uint64_t removals = store->removals();
  const auto started = Clock::now();
  FoundRows rows(store->find_all(ids_of(keys)), removals, store->has_ageing_entries());
  refuse_broken(keys, rows, access);
  const Status failure = first_failure(rows.entries());
  if (failure.is_ok()) return rows;
  report(failure, "reading");
  if (Clock::now() - started > kStall) handle_->leave_alone(failure);
  return rows;
}

// Returns the first failure that is not the fault of one entry. It is reported once, however many
// rows it struck.
Status DiskTier::first_failure(const store::FoundEntries& entries) {
  if (!entries.index_status().is_ok()) return entries.index_status();
  for (const auto& failure : entries.failures()) {
    if (failure.status.code() != StatusCode::kCorruption) return failure.status;
  }
  return Status::ok();
}

void DiskTier::refuse_broken(const Keys& keys, const FoundRows& rows, Access access) {
  const auto started = Clock::now();
  // Dropping takes the directory's lock: what a busy directory leaves of it is for later calls.
  const auto access_now = [&] { return Clock::now() - started > kStall ? Access::kRead : access; };
  const store::FoundEntries& entries = rows.entries();
  for (const auto& failure : entries.failures()) {
    if (failure.status.code() != StatusCode::kCorruption) continue;
    refuse(keys.id(failure.i), failure.sequence, failure.status, access_now());
  }
  const auto is_sound = [](const FoundRows::Header& header) { return header.is_sound; };
  if (std::all_of(rows.headers().begin(), rows.headers().end(), is_sound)) return;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries.has(i) || rows.has(i)) continue;
    refuse(keys.id(i), entries.sequence(i), Status::corruption("an entry's header is too short"),
           access_now());
  }
}

HeldEntry DiskTier::read(const store::EntryId& id, FoundRows& rows, std::size_t row, Access access,
                         Reading reading) {
  const auto started = Clock::now();
  if (reading == Reading::kToKeep) rows.verify_again(row);
  auto entry = reading == Reading::kOnce
                   ? read_entry_once(format_, rows, row)
                   : std::move(read_entries(format_, Form::kWhole, rows, {row}).front());
  if (entry.is_ok()) return {std::move(entry).value(), rows.sequence(row), rows.removals()};
  refuse(id, rows.sequence(row), entry.status(), access);
  const bool is_entrys_fault = entry.status().code() == StatusCode::kCorruption;
  if (!is_entrys_fault && Clock::now() - started > kStall) handle_->leave_alone(entry.status());
  return {};
}

void DiskTier::refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
                      Access access) {
  if (broken.code() != StatusCode::kCorruption) return report(broken, "reading");
  stats_.add(Counter::kCorrupt);
  log(LogLevel::kWarning, "corrupt:" + settings_.dir,
      "a damaged entry in '" + settings_.dir +
          "' was dropped and is computed anew: " + broken.message());
  if (access != Access::kWrite) return;
  if (const StorePtr store = open(access)) {
    report(store->drop(id, sequence), "dropping a damaged entry");
  }
}

void DiskTier::drop(const store::EntryId& id, Access access) {
  if (access != Access::kWrite) return;
  const StorePtr store = open(access);
  if (store == nullptr) return;
  const store::Sequence sequence = store->sequences(store::batch_of(id)).front();
  if (sequence != 0) report(store->drop(id, sequence), "dropping an entry");
}

std::optional<store::Moment> DiskTier::now(Access access) {
  const StorePtr store = open(access);
  if (store == nullptr) return std::nullopt;
  return store->now();
}

bool DiskTier::was_cleared(const store::EntryId& id, const store::Moment& since) {
  const StorePtr store = open(Access::kRead);
  return store != nullptr && store->was_cleared_since(since, id);
}

void DiskTier::store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
                     OneOrMany<Kept>& kept) {
  const StorePtr store = store_to_write(kept);
  if (store == nullptr) return;
  const store::Moment* const since = options.since != nullptr && options.since->in_directory
                                         ? &*options.since->in_directory
                                         : nullptr;
  std::vector<std::size_t> places;  // of what was not cleared
  places.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    kept[i].is_cleared = since != nullptr && store->was_cleared_since(*since, keys.id(i));
    if (!kept[i].is_cleared) places.push_back(i);
  }
  OneOrMany<std::string> headers(keys.size());  // which the puts borrow
  std::vector<store::RowPut> puts;
  puts.reserve(keys.size());
  for (const std::size_t i : places) {
    const Entry& entry = *entries[i];
    Written written = entry.value->write(settings_.codec);
    headers[i] = pack_header(entry.signature, written.header, entry.sample.bytes());
    puts.push_back({keys.keys[i], headers[i], std::move(written.payload), entry.run_us.value_or(0),
                    options.replaces, /*stored_at_us=*/0, since});
  }
  put(*store, keys, places, puts, kept);
}

void DiskTier::store_rows(const Keys& keys, const FoundRows& rows,
                          const std::vector<std::size_t>& which,
                          const std::optional<store::Moment>& since, OneOrMany<Kept>& kept) {
  const StorePtr store = store_to_write(kept);
  if (store == nullptr) return;
  // An entry that came here meanwhile is newer.
  const std::vector<store::Sequence> there = store->sequences(ids_of(keys));
  std::vector<std::size_t> absent;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (there[i] == 0) absent.push_back(i);
  }
  OneOrMany<std::string> headers(absent.size());  // which the puts borrow
  std::vector<store::RowPut> puts;
  puts.reserve(absent.size());
  for (std::size_t k = 0; k < absent.size(); ++k) {
    const std::size_t row = which[absent[k]];
    headers[k] = rows.entries().whole_header(row);
    puts.push_back({keys.keys[absent[k]], headers[k], rows.entries().received_payload(row),
                    rows.run_us(row), /*replaces=*/false, rows.stored_at_us(row),
                    since.has_value() ? &*since : nullptr});
  }
  put(*store, keys, absent, puts, kept);
}

void DiskTier::take_back(const Keys& keys, std::span<const Kept> kept) {
  const StorePtr store = handle_->get_open();
  if (store == nullptr) return;
  std::vector<store::Sequence> sequences;  // 0: it is not there
  sequences.reserve(kept.size());
  const std::uint64_t removals = store->removals();
  for (const Kept& one : kept) {
    sequences.push_back(store::are_of_one_source(one.removals, removals) ? one.sequence : 0);
  }
  report(store->take_back(keys.ids(), sequences), "taking back what was cleared meanwhile");
}

StorePtr DiskTier::store_to_write(OneOrMany<Kept>& kept) {
  const StorePtr store = open(Access::kWrite);
  const std::uint64_t removals =
      store != nullptr ? store->removals() : handle_->removals(Access::kWrite);
  for (Kept& one : kept) one.removals = removals;
  return store;
}

void DiskTier::put(store::Store& store, const Keys& keys, const std::vector<std::size_t>& places,
                   const std::vector<store::RowPut>& puts, OneOrMany<Kept>& kept) {
  if (puts.empty()) return;
  const auto started = Clock::now();
  OneOrMany<Digest128> addresses(places.size());
  for (std::size_t k = 0; k < places.size(); ++k) addresses[k] = keys.addresses[places[k]];
  std::vector<store::Sequence> sequences(places.size(), 0);
  const Status status = store.put_all(*keys.context(), addresses, puts, sequences);
  report_store(status, started);
  std::uint64_t largest_bytes = 0;
  std::int64_t not_kept = 0;
  for (std::size_t k = 0; k < places.size(); ++k) {
    if (sequences[k] != 0) {
      kept[places[k]].sequence = sequences[k];
      kept[places[k]].is_kept = true;
      continue;
    }
    ++not_kept;
    largest_bytes = std::max<std::uint64_t>(largest_bytes, puts[k].payload.size_bytes);
  }
  if (status.is_ok() && not_kept > 0) count_not_kept(not_kept, largest_bytes);
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
  if (!is_entrys_fault && Clock::now() - started > kStall) handle_->leave_alone(status);
}

std::vector<bool> DiskTier::are_current(const store::EntryIds& ids,
                                        const std::vector<Known>& known) {
  const StorePtr store = open(Access::kRead);
  if (store == nullptr) return std::vector<bool>(ids.size(), false);
  const std::uint64_t removals = store->removals();
  std::vector<store::Sequence> sequences;  // 0: none has it
  sequences.reserve(known.size());
  for (const Known& one : known) {
    sequences.push_back(store::are_of_one_source(one.removals, removals) ? one.sequence : 0);
  }
  return store->are_current(ids, sequences);
}

std::vector<bool> DiskTier::are_there(const Keys& keys) {
  std::vector<bool> are_there(keys.size(), false);
  const StorePtr store = open(Access::kRead);
  if (store == nullptr) return are_there;
  const std::vector<store::Sequence> sequences = store->sequences(ids_of(keys));
  for (std::size_t i = 0; i < keys.size(); ++i) are_there[i] = sequences[i] != 0;
  return are_there;
}

std::size_t DiskTier::expect(const Keys& keys, std::uint64_t most_bytes) {
  const StorePtr store = open(Access::kRead);
  return store == nullptr ? keys.size() : store->expect(keys.ids(), most_bytes);
}

std::optional<std::string> DiskTier::find_note(std::string_view about, Access access) {
  const StorePtr store = open(access);
  if (store == nullptr) return std::nullopt;
  auto text = store->find_note(about);
  if (!text.is_ok()) return std::nullopt;
  return std::move(text).value();
}

void DiskTier::keep_note(std::string_view about, std::string_view text) {
  const StorePtr store = open(Access::kWrite);
  if (store != nullptr) report(store->keep_note(about, text), "keeping a note");
}

std::int64_t DiskTier::clear(const store::ClearFilter& filter) {
  // No directory is made in order to be cleared.
  if (settings_.disk_bytes == 0 || file_system_.info(settings_.dir).is_not_found()) return 0;
  std::string why_not;
  const StorePtr store = handle_->get_to_clear(why_not);
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
    handle_->leave_alone_to_clear(removed.status());
  }
  if (removed.is_ok() && filter.covers_everything()) {
    report(store->clear_notes(), "clearing notes");
  }
  return removed.is_ok() ? removed.value() : 0;
}

bool DiskTier::flush() {
  const StorePtr store = handle_->get_open();
  if (store == nullptr) return true;
  const Status status = store->flush();
  report(status, "flushing");
  return status.is_ok();
}

store::Totals DiskTier::totals(bool may_open) {
  const StorePtr store = may_open ? open(Access::kRead) : handle_->get_open();
  if (store == nullptr) return {};
  auto totals = store->totals();
  report(totals.status(), "counting");
  return totals.is_ok() ? totals.value() : store::Totals{};
}

void DiskTier::add_sizes(std::map<std::string, std::int64_t>& sizes, bool may_open) {
  const store::Totals totals = this->totals(may_open);
  sizes["entries_disk"] = totals.entries;
  sizes["bytes_disk"] = totals.size_bytes;
}

}  // namespace modcache::cache
