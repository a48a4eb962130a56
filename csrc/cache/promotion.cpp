// SPDX-License-Identifier: Apache-2.0
//
// Cache: copies what a tier has into the tiers before it.
#include <algorithm>
#include <string>
#include <utility>

#include "cache/cache.h"

namespace modcache::cache {

// Reads the values of rows into entries, and stores them in memory if they have room there.
void Cache::read_values(const Keys& keys, const LookupOptions& options, Found& found) {
  const Tiers& tiers = keys.configuration->tiers;
  auto& memory = *tiers.nearest_first.front();
  const Access access = options.may_write ? Access::kWrite : Access::kRead;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_row(i)) continue;
    const Found::Item item = found.items_[i];
    auto& tier = *tiers.nearest_first[item.tier];
    const store::Sequence stored_at = found.held_[i].sequence;  // by store_rows_nearer()
    const bool has_room =
        !options.is_silent && memory.has_room_for(found.rows_.payload_size_bytes(item.row));
    HeldEntry held = tier.read(keys.id(i), found.rows_, item.row, access,
                               has_room ? Reading::kToKeep : Reading::kOnce);
    if (held.entry == nullptr) {
      found.items_[i].state = Found::State::kMissing;
      continue;
    }
    if (stored_at != 0) {
      held.sequence = stored_at;
      held.removals = found.held_[i].removals;
    }
    found.held_[i] = held;
    if (!has_room || (tier.is_far() && is_outdated(keys, i, stored_at, found))) continue;
    OneOrMany<EntryPtr> entries(1);
    entries[0] = held.entry;
    OneOrMany<Kept> kept(1);
    kept[0].sequence = held.sequence;
    kept[0].removals = held.removals;
    kept[0].is_kept = true;
    const Keys key = keys.only({i});
    memory.store(key, entries, {}, kept);
    found.held_[i].entry = entries[0];
    if (tier.is_far() && found.still_holds_ && !found.still_holds_()) {
      take_back_nearer(item.tier, key, kept);
    }
  }
}

// Returns whether a value of the server must not be stored: something was cleared or replaced since
// the server was asked, or something newer came into the directory.
bool Cache::is_outdated(const Keys& keys, std::size_t i, store::Sequence stored_at,
                        const Found& found) {
  if (found.is_outdated_) return true;
  return stored_at == 0 && keys.configuration->tiers.disk->are_there(keys.only({i})).front();
}

// Values of the server are stored by the tiers before it as they are, so that they are transferred
// once.
void Cache::store_rows_nearer(const Keys& keys, std::size_t tier, Found& found) {
  const auto& tiers = keys.configuration->tiers.nearest_first;
  std::vector<std::size_t> places;
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_row(i) || found.items_[i].tier != tier) continue;
    places.push_back(i);
    rows.push_back(found.items_[i].row);
  }
  if (places.empty()) return;
  const Keys stored = keys.only(places);
  OneOrMany<Kept> kept(places.size());
  for (std::size_t nearer = tier; nearer-- > 0;) {
    tiers[nearer]->store_rows(stored, found.rows_, rows, found.asked_at_, kept);
  }
  const bool is_any_kept =
      std::any_of(kept.begin(), kept.end(), [](const Kept& one) { return one.is_kept; });
  if (is_any_kept && found.still_holds_ && !found.still_holds_()) {
    found.is_outdated_ = true;
    return take_back_nearer(tier, stored, kept);
  }
  for (std::size_t k = 0; k < places.size(); ++k) {
    found.held_[places[k]].sequence = kept[k].sequence;
    found.held_[places[k]].removals = kept[k].removals;
  }
}

void Cache::take_back_nearer(std::size_t tier, const Keys& keys, const OneOrMany<Kept>& kept) {
  const auto& tiers = keys.configuration->tiers.nearest_first;
  for (std::size_t nearer = tier; nearer-- > 0;) tiers[nearer]->take_back(keys, kept);
}

void Cache::bring_to_device(const Keys& keys, const Found& found) {
  if (places_.of(keys.context()->scope).kind != Place::Kind::kDevice) return;
  const Tiers& tiers = keys.configuration->tiers;
  if (keys.configuration->settings.memory_bytes == 0) return;
  std::vector<std::string> brought;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_row(i)) brought.emplace_back(keys.keys[i]);
  }
  // Over a set larger than memory the last ones used are no better than any others: they stay.
  if (!brought.empty()) {
    read_ahead_.ask({tiers.memory, tiers.disk, keys.context(), keys.form, std::move(brought),
                     /*pushes_out=*/false});
  }
}

void Cache::prefetch(const Keys& keys, std::vector<bool>& is_there) {
  const Tiers& tiers = keys.configuration->tiers;
  // Entries in memory count as used, so that those that are brought do not push them out.
  Found in_memory(keys.size());
  tiers.nearest_first.front()->find(keys, Access::kRead, OnMiss::kIgnore, in_memory);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    is_there[i] = in_memory.entry(i) != nullptr;
    if (!is_there[i]) others.push_back(i);
  }
  if (others.empty()) return;
  // The caller does not wait until the disk has read anything: the index knows what is there.
  const std::vector<bool> are_on_disk = tiers.disk->are_there(keys.only(others));
  std::vector<std::string> brought;
  for (std::size_t k = 0; k < others.size(); ++k) {
    if (!are_on_disk[k]) continue;
    is_there[others[k]] = true;
    brought.emplace_back(keys.keys[others[k]]);
  }
  if (brought.empty() || keys.configuration->settings.memory_bytes == 0) return;
  read_ahead_.ask({tiers.memory, tiers.disk, keys.context(), keys.form, std::move(brought)});
}

}  // namespace modcache::cache
