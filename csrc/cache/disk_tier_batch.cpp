// SPDX-License-Identifier: Apache-2.0
//
// DiskTier, many rows at once.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cache/disk_tier.h"
#include "cache/entry_header.h"

namespace modcache::cache {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

FoundRows DiskTier::get_all(const store::Context& context,
                            const std::vector<std::string_view>& keys, Access access) {
  const StorePtr store = this->store(access);
  if (store == nullptr) return {};
  const std::uint64_t removals = store->removals();
  const auto started = Clock::now();
  FoundRows rows(store->find_all(context, keys), removals, store->has_ageing_entries());
  refuse_broken(context, keys, rows, access);
  const Status failure = first_failure(rows.entries());
  if (failure.is_ok()) return rows;
  report(failure, "reading");
  if (Clock::now() - started > kStall) leave_alone(failure);
  return rows;
}

// What is not the fault of one entry; one cause, however many rows it struck.
Status DiskTier::first_failure(const store::FoundEntries& entries) {
  if (!entries.index_status().is_ok()) return entries.index_status();
  for (const auto& failure : entries.failures()) {
    if (failure.status.code() != StatusCode::kCorruption) return failure.status;
  }
  return Status::ok();
}

void DiskTier::refuse_broken(const store::Context& context,
                             const std::vector<std::string_view>& keys, const FoundRows& rows,
                             Access access) {
  const auto started = Clock::now();
  // Dropping takes the directory's lock: what a busy directory leaves of it is for later calls.
  const auto access_now = [&] { return Clock::now() - started > kStall ? Access::kRead : access; };
  const store::FoundEntries& entries = rows.entries();
  for (const auto& failure : entries.failures()) {
    if (failure.status.code() != StatusCode::kCorruption) continue;
    refuse({context, keys[failure.i]}, failure.sequence, failure.status, access_now());
  }
  const auto is_sound = [](const FoundRows::Header& header) { return header.is_sound; };
  if (std::all_of(rows.headers().begin(), rows.headers().end(), is_sound)) return;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries.has(i) || rows.has(i)) continue;
    refuse({context, keys[i]}, entries.sequence(i),
           Status::corruption("an entry's header is too short"), access_now());
  }
}

void DiskTier::refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
                      Access access) {
  if (broken.code() != StatusCode::kCorruption) return report(broken, "reading");
  stats_.add(Counter::kCorrupt);
  log(LogLevel::kWarning, "corrupt:" + settings_.dir,
      "a damaged entry in '" + settings_.dir +
          "' was dropped and is computed anew: " + broken.message());
  if (access != Access::kWrite) return;
  if (const StorePtr store = this->store(access)) {
    report(store->drop(id, sequence), "dropping a damaged entry");
  }
}

std::vector<store::Sequence> DiskTier::put_all(const store::Context& context,
                                               const std::vector<std::string_view>& keys,
                                               const std::vector<EntryPtr>& entries,
                                               bool replaces) {
  std::vector<store::Sequence> sequences(keys.size(), 0);
  const StorePtr store = this->store(Access::kWrite);
  if (store == nullptr) return sequences;
  const auto started = Clock::now();
  std::vector<std::string> headers;
  std::vector<store::RowPut> puts;
  headers.reserve(keys.size());
  puts.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Entry& entry = *entries[i];
    Written written = entry.value->write(settings_.codec);
    headers.push_back(pack_header(entry.signature, written.header, entry.sample.bytes()));
    puts.push_back({keys[i], headers.back(), std::move(written.payload), entry.run_us.value_or(0),
                    replaces,
                    /*stored_at_us=*/0, entry.confirmation});
  }
  const Status status = store->put_all(context, puts, sequences);
  report_store(status, started);
  if (!status.is_ok()) return sequences;
  std::uint64_t largest_bytes = 0;
  std::int64_t not_kept = 0;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (sequences[i] != 0) continue;
    ++not_kept;
    largest_bytes = std::max<std::uint64_t>(largest_bytes, puts[i].payload.size_bytes);
  }
  if (not_kept > 0) count_not_kept(not_kept, largest_bytes);
  return sequences;
}

std::vector<bool> DiskTier::are_current(const store::Context& context,
                                        const std::vector<std::string_view>& keys,
                                        const std::vector<Known>& known) {
  const StorePtr store = this->store(Access::kRead);
  if (store == nullptr) return std::vector<bool>(keys.size(), false);
  const std::uint64_t removals = store->removals();
  std::vector<store::Sequence> sequences;  // 0: none has it
  sequences.reserve(known.size());
  for (const Known& one : known) {
    sequences.push_back(store::are_of_one_source(one.removals, removals) ? one.sequence : 0);
  }
  return store->are_current(context, keys, sequences);
}

}  // namespace modcache::cache
