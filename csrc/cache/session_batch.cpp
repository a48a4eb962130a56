// SPDX-License-Identifier: Apache-2.0
//
// Session, many rows at once.
#include <algorithm>
#include <utility>

#include "cache/cache.h"

namespace modcache::cache {
namespace {

std::vector<Digest128> addresses_of(const store::Context& context,
                                    const std::vector<std::string_view>& keys) {
  std::vector<Digest128> addresses;
  addresses.reserve(keys.size());
  for (const std::string_view key : keys) addresses.push_back(address_of({context, key}));
  return addresses;
}

// Key i of the batch as a question of its own.
Request request_of(const BatchRequest& batch, std::size_t i) {
  return {batch.context, batch.keys[i], batch.signature, batch.input,
          batch.input != nullptr ? (*batch.rows)[i] : 0};
}

}  // namespace

BatchRequest Session::asked(const BatchRequest& request) {
  const bool compares = compares_input(request.context->scope, request.input);
  return {request.context, request.keys, request.signature, compares ? request.input : nullptr,
          request.rows};
}

BatchFound Session::lookup_all(const BatchRequest& given, bool may_write) {
  const BatchRequest request = asked(given);
  BatchFound found;
  found.landings_ = flights_.landings();
  found.places_.assign(request.keys.size(), BatchFound::kMissing);
  // Those that memory has and the signature refuses are misses; the disk has nothing newer.
  std::vector<bool> is_settled;
  if (memory_->entries() > 0) find_all_in_memory(request, found, is_settled);
  if (is_settled.empty()) {
    found.disk_ = disk_->get_all(*request.context, request.keys, access(may_write));
    std::vector<std::size_t> rows(request.keys.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
    take_from_disk(request, rows, found);
    return found;
  }
  std::vector<std::size_t> rows;
  std::vector<std::string_view> keys;
  for (std::size_t i = 0; i < is_settled.size(); ++i) {
    if (is_settled[i]) continue;
    rows.push_back(i);
    keys.push_back(request.keys[i]);
  }
  if (rows.empty()) return found;
  found.disk_ = disk_->get_all(*request.context, keys, access(may_write));
  take_from_disk(request, rows, found);
  return found;
}

void Session::find_all_in_memory(const BatchRequest& request, BatchFound& found,
                                 std::vector<bool>& is_settled) {
  const std::vector<Digest128> addresses = addresses_of(*request.context, request.keys);
  std::vector<MemoryTier::Held> held;
  memory_->get_all(addresses, *request.context, request.keys, held);
  drop_expired(request, addresses, held);
  refuse_outdated(request, addresses, held);
  is_settled.assign(held.size(), false);
  found.entries_.resize(held.size());
  std::int64_t hits = 0;
  std::int64_t saved_us = 0;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].entry == nullptr) continue;
    is_settled[i] = true;
    const Entry& entry = *held[i].entry;
    if (!accepts(request_of(request, i), entry)) {
      found.conflicts_.push_back(i);
      continue;
    }
    ++hits;
    saved_us += entry.run_us.value_or(0);
    found.places_[i] = BatchFound::kInMemory;
    found.entries_[i] = std::move(held[i].entry);
  }
  count_hits(request.context->scope, Counter::kHitsMemory, hits, saved_us);
}

void Session::drop_expired(const BatchRequest& request, const std::vector<Digest128>& addresses,
                           std::vector<MemoryTier::Held>& held) {
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].entry == nullptr || is_valid(*held[i].entry, settings_.max_age_s)) continue;
    memory_->erase(addresses[i], {*request.context, request.keys[i]});
    held[i] = {};
  }
}

// As find_in_memory() does: what is held is compared with the directory if anything was removed
// there since it was last compared.
void Session::refuse_outdated(const BatchRequest& request, const std::vector<Digest128>& addresses,
                              std::vector<MemoryTier::Held>& held) {
  const std::uint64_t removals = disk_->removals();
  std::vector<std::size_t> doubtful;
  std::vector<std::string_view> keys;
  std::vector<DiskTier::Known> known;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].entry == nullptr || held[i].removals == removals) continue;
    doubtful.push_back(i);
    keys.push_back(request.keys[i]);
    known.push_back({held[i].sequence, held[i].removals});
  }
  if (doubtful.empty()) return;
  const std::vector<bool> is_current = disk_->are_current(*request.context, keys, known);
  std::vector<MemoryTier::Verdict> verdicts;
  for (std::size_t place = 0; place < doubtful.size(); ++place) {
    const std::size_t i = doubtful[place];
    verdicts.push_back({addresses[i], keys[place], known[place].sequence, is_current[place]});
    if (!is_current[place]) held[i] = {};
  }
  memory_->settle_all(*request.context, verdicts, removals);
}

void Session::take_from_disk(const BatchRequest& request, const std::vector<std::size_t>& rows,
                             BatchFound& found) {
  const FoundRows& disk = found.disk_;
  std::vector<bool> is_match;
  is_match.reserve(disk.headers().size());
  for (const auto& header : disk.headers()) {
    is_match.push_back(match_.fits_signature(request.signature, header.signature));
  }
  std::int64_t hits = 0;
  std::int64_t saved_us = 0;
  const bool is_brought = places_.of(request.context->scope).kind == Place::Kind::kDevice;
  std::vector<std::string> brought;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (!disk.has(row)) continue;
    const std::size_t i = rows[row];
    const std::size_t input_row = request.input != nullptr ? (*request.rows)[i] : 0;
    if (!is_match[disk.header_index(row)] ||
        !match_.fits_sample(request.input, input_row, disk.sample(row))) {
      note_conflict(request_of(request, i), disk.header(row).signature, disk.stored_at_us(row));
      found.conflicts_.push_back(i);
      continue;
    }
    ++hits;
    saved_us += disk.run_us(row);
    found.places_[i] = static_cast<std::int64_t>(row);
    if (is_brought) brought.emplace_back(request.keys[i]);
  }
  count_hits(request.context->scope, Counter::kHitsDisk, hits, saved_us);
  // Over a set larger than memory the last ones used are no better than any others: they stay.
  bring({memory_, disk_, request.context, Form::kRow, std::move(brought), /*pushes_out=*/false});
}

void Session::bring(ReadAhead::Request request) {
  if (request.keys.empty() || settings_.memory_bytes == 0) return;
  read_ahead_.ask(std::move(request));
}

void Session::prefetch(const ContextPtr& context, Form form,
                       const std::vector<std::string_view>& keys, std::vector<bool>& is_there) {
  // Those that are in memory count as used: what is brought is not to push them out.
  const std::vector<Digest128> addresses = addresses_of(*context, keys);
  std::vector<MemoryTier::Held> held;
  memory_->get_all(addresses, *context, keys, held, MemoryTier::OnMiss::kIgnore);
  const BatchRequest request{context, keys, {}};
  drop_expired(request, addresses, held);
  refuse_outdated(request, addresses, held);
  std::vector<std::size_t> places;
  std::vector<std::string_view> elsewhere;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (held[i].entry != nullptr) {
      is_there[i] = true;
      continue;
    }
    places.push_back(i);
    elsewhere.push_back(keys[i]);
  }
  if (elsewhere.empty()) return;
  const FoundRows found = disk_->get_all(*context, elsewhere, DiskTier::Access::kRead);
  std::vector<std::string> brought;
  for (std::size_t row = 0; row < elsewhere.size(); ++row) {
    if (!found.has(row)) continue;
    is_there[places[row]] = true;
    brought.emplace_back(elsewhere[row]);
  }
  bring({memory_, disk_, context, form, std::move(brought)});
}

void Session::count_hits(const std::string& scope, Counter counter, std::int64_t hits,
                         std::int64_t saved_us) {
  if (hits > 0) stats_.add(counter, hits);
  if (saved_us > 0) stats_.add(Counter::kSavedUs, saved_us);
  conflicts_.note_agreements(scope, hits);
}

void Session::refuse(const BatchRequest& request, BatchFound& found, std::size_t i,
                     const Status& broken, bool may_write) {
  if (found.is_missing(i)) return;
  if (const EntryPtr entry = found.in_memory(i)) {
    stats_.add(Counter::kHitsMemory, -1);
    stats_.add(Counter::kSavedUs, -entry->run_us.value_or(0));
    found.places_[i] = BatchFound::kMissing;
    found.entries_[i] = nullptr;
    return;
  }
  const std::size_t row = found.disk_row(i);
  stats_.add(Counter::kHitsDisk, -1);
  stats_.add(Counter::kSavedUs, -found.disk_.run_us(row));
  found.places_[i] = BatchFound::kMissing;
  disk_->refuse({*request.context, request.keys[i]}, found.disk_.sequence(row), broken,
                access(may_write));
}

BatchLead Session::lead_rows(const BatchRequest& request, const BatchFound& found) {
  const std::vector<std::size_t> missing = found.missing();
  BatchLead rows;
  if (missing.empty()) return rows;
  std::vector<bool> is_led;
  rows.lead = flights_.try_enter_all(addresses_of_rows(request, missing), is_led);
  for (std::size_t place = 0; place < missing.size(); ++place) {
    (is_led[place] ? rows.led : rows.awaited).push_back(missing[place]);
  }
  rows.look_again = flights_.landings() != found.landings_;
  return rows;
}

BatchFound Session::lookup_led(const BatchRequest& request, SingleFlight::Lead& lead) {
  BatchFound found = lookup_all(request, /*may_write=*/true);
  if (found.missing().size() < found.size()) lead.stored();
  return found;
}

bool Session::wait_for(const BatchRequest& request, const std::vector<std::size_t>& rows) {
  return !rows.empty() && flights_.wait_all(addresses_of_rows(request, rows));
}

std::vector<Digest128> Session::addresses_of_rows(const BatchRequest& request,
                                                  const std::vector<std::size_t>& rows) {
  std::vector<std::string_view> keys;
  keys.reserve(rows.size());
  for (const std::size_t row : rows) keys.push_back(request.keys[row]);
  return addresses_of(*request.context, keys);
}

// Which of them are kept is asked one by one.
std::size_t Session::store_each(const ContextPtr& context,
                                const std::vector<std::string_view>& keys,
                                const std::vector<EntryPtr>& entries, bool replaces) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (store({context, keys[i], {}}, entries[i], replaces)) ++kept;
  }
  return kept;
}

std::size_t Session::store_all(const ContextPtr& context, const std::vector<std::string_view>& keys,
                               const std::vector<EntryPtr>& entries, bool replaces) {
  if (keys.empty()) return 0;
  if (settings_.min_run_us > 0) return store_each(context, keys, entries, replaces);
  const std::uint64_t removals = disk_->removals(DiskTier::Access::kWrite);
  const std::vector<store::Sequence> sequences = disk_->put_all(*context, keys, entries, replaces);
  // As in store(): `removals` from before the puts only makes the next lookup compare once more.
  const std::vector<Digest128> addresses = addresses_of(*context, keys);
  std::vector<MemoryTier::Put> puts;
  puts.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    puts.push_back({addresses[i],
                    keys[i],
                    {moved_to_place(context->scope, entries[i]), sequences[i], removals}});
  }
  const std::vector<bool> are_in_memory = memory_->put_all(context, std::move(puts));
  std::int64_t not_kept = 0;
  std::uint64_t largest_bytes = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (are_in_memory[i] || sequences[i] != 0) continue;
    ++not_kept;
    largest_bytes =
        std::max<std::uint64_t>(largest_bytes, MemoryTier::size_bytes_of(*entries[i], keys[i]));
  }
  stats_.add(Counter::kStored, static_cast<std::int64_t>(keys.size()) - not_kept);
  if (not_kept > 0) count_not_kept(not_kept, largest_bytes);
  return keys.size();
}

}  // namespace modcache::cache
