// SPDX-License-Identifier: Apache-2.0
#include "cache/memory_tier.h"

#include <string_view>
#include <utility>

#include "cache/read_entries.h"

namespace modcache::cache {

void MemoryTier::find(const Keys& keys, Access, OnMiss on_miss, Found& found) {
  if (store_->is_empty()) return;
  store_->get_all(keys.ids(), found.held(), on_miss);
  drop_outdated(keys, found.held());
}

void MemoryTier::drop_outdated(const Keys& keys, HeldEntry* held) {
  std::vector<MemoryStore::Verdict> verdicts;
  std::optional<std::uint64_t> removals;
  std::vector<std::size_t> doubtful;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (held[i].entry == nullptr) continue;
    if (is_expired(*held[i].entry, max_age_s_)) {
      verdicts.push_back({keys.id(i)});
      held[i] = {};
      continue;
    }
    if (!removals.has_value()) removals = directory_->removals();
    if (held[i].removals != *removals) doubtful.push_back(i);
  }
  if (!doubtful.empty()) compare_with_directory(keys, doubtful, held, verdicts);
  if (!verdicts.empty()) store_->settle_all(verdicts, removals.value_or(0));
}

void MemoryTier::compare_with_directory(const Keys& keys, const std::vector<std::size_t>& which,
                                        HeldEntry* held,
                                        std::vector<MemoryStore::Verdict>& verdicts) {
  std::vector<std::string_view> asked;
  std::vector<Digest128> addresses;
  std::vector<DiskTier::Known> known;
  for (const std::size_t i : which) {
    asked.push_back(keys.keys[i]);
    addresses.push_back(keys.addresses[i]);
    known.push_back({held[i].sequence, held[i].removals});
  }
  const std::vector<bool> are_current =
      directory_->are_current({*keys.context(), asked, addresses}, known);
  for (std::size_t place = 0; place < which.size(); ++place) {
    const std::size_t i = which[place];
    verdicts.push_back({keys.id(i), known[place].sequence, are_current[place]});
    if (!are_current[place]) held[i] = {};
  }
}

void MemoryTier::store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions&,
                       OneOrMany<Kept>& kept) {
  std::vector<MemoryStore::Put> puts;
  std::vector<std::size_t> places;
  puts.reserve(keys.size());
  places.reserve(keys.size());
  // Replacing an entry counts as a removal, so a count from before that only makes the next lookup
  // compare once more.
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (kept[i].is_cleared) continue;
    entries[i] = moved_to_place(keys.context()->scope, std::move(entries[i]));
    puts.push_back(
        {keys.addresses[i], keys.keys[i], {entries[i], kept[i].sequence, kept[i].removals}});
    places.push_back(i);
  }
  const std::vector<bool> are_taken = store_->put_all(keys.context(), std::move(puts));
  for (std::size_t k = 0; k < places.size(); ++k) {
    if (!are_taken[k]) continue;
    kept[places[k]].is_kept = true;
    kept[places[k]].in_memory = entries[places[k]].get();
  }
}

void MemoryTier::store_rows(const Keys& keys, const FoundRows& rows,
                            const std::vector<std::size_t>& which,
                            const std::optional<store::Moment>& /*since*/, OneOrMany<Kept>& kept) {
  // A single value is stored when it was read.
  if (has_directory_ || keys.form == Form::kWhole || store_->budget_bytes() == 0) return;
  const auto read = read_entries(format_, keys.form, rows, which);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!read[i].is_ok()) continue;           // whoever uses the row finds that out, too
    if (store_->holds(keys.id(i))) continue;  // what came here meanwhile is newer
    OneOrMany<EntryPtr> entries(1);
    entries[0] = read[i].value();
    OneOrMany<Kept> one(1);
    store(keys.only({i}), entries, {}, one);
    kept[i].is_kept = kept[i].is_kept || one[0].is_kept;
    kept[i].in_memory = one[0].in_memory;
  }
}

void MemoryTier::take_back(const Keys& keys, std::span<const Kept> kept) {
  std::vector<MemoryStore::Verdict> verdicts;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (kept[i].in_memory == nullptr) continue;
    verdicts.push_back({keys.id(i), /*sequence=*/0, /*is_current=*/false, kept[i].in_memory});
  }
  store_->settle_all(verdicts, /*removals=*/0);
}

EntryPtr MemoryTier::moved_to_place(const std::string& scope, EntryPtr entry) const {
  const Place place = places_.of(scope);
  if (place.is_host() || store_->budget_bytes() == 0) return entry;
  Entry moved = *entry;
  moved.value = format_.moved(std::move(moved.value), place);
  if (moved.value == entry->value) return entry;
  return std::make_shared<const Entry>(std::move(moved));
}

void MemoryTier::drop(const store::EntryId& id, Access) {
  store_->settle_all({{id, /*sequence=*/0, /*is_current=*/false}}, /*removals=*/0);
}

void MemoryTier::add_sizes(std::map<std::string, std::int64_t>& sizes, bool) {
  sizes["entries_memory"] = store_->entries();
  sizes["bytes_memory"] = store_->size_bytes();
}

}  // namespace modcache::cache
