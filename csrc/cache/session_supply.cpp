// SPDX-License-Identifier: Apache-2.0
//
// Session: hits of near tiers that are given to the server (shared_fill.h).
#include <utility>

#include "cache/session.h"
#include "cache/shared_fill.h"

namespace modcache::cache {
namespace {

thread_local bool shares_hits_in_thread = false;

}  // namespace

bool share_hits_here(bool shares_hits) { return std::exchange(shares_hits_in_thread, shares_hits); }

bool shares_hits_here() { return shares_hits_in_thread; }

bool Session::shares_hits() const { return tiers_.remote != nullptr && shares_hits_here(); }

// An entry that came from the directory into memory may not know it, and its record does.
std::int64_t Session::stored_at_us_of(const store::EntryId& id, const BatchFound& found,
                                      std::size_t i) const {
  const BatchFound::Row& row = found.rows_[i];
  if (row.held.entry == nullptr) return found.rows_found_->entries().stored_at_us(row.row);
  if (row.held.entry->stored_at_us != kAgeless) return row.held.entry->stored_at_us;
  const auto on_disk = tiers_.disk->look(id);
  return on_disk.has_value() ? on_disk->stored_at_us : 0;
}

void Session::supply_far(const BatchRequest& request, const MarkOfSupply& mark,
                         const BatchFound& found) {
  ChosenKeys near;
  std::vector<std::int64_t> stored_at_us;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_missing(i) || tiers_.nearest_first[found.rows_[i].tier]->is_far()) continue;
    near.add(request.keys[i], found.addresses_[i], i);
    const store::EntryId id{*request.context, request.keys[i], found.addresses_[i]};
    stored_at_us.push_back(stored_at_us_of(id, found, i));
  }
  if (near.empty()) return;
  const std::vector<bool> is_lacking =
      tiers_.remote->find_lacking(near.of(request.context), stored_at_us);
  ChosenKeys held;
  std::vector<EntryPtr> entries;
  std::vector<std::int64_t> times_us;
  ChosenKeys lying;
  for (std::size_t k = 0; k < near.rows.size(); ++k) {
    if (!is_lacking[k]) continue;
    const BatchFound::Row& row = found.rows_[near.rows[k]];
    if (row.held.entry != nullptr) {
      held.add(near.keys[k], near.addresses[k], near.rows[k]);
      entries.push_back(row.held.entry);
      times_us.push_back(stored_at_us[k]);
    } else {
      lying.add(near.keys[k], near.addresses[k], row.row);
    }
  }
  if (!held.empty()) tiers_.remote->supply(held.of(request.context), mark, entries, times_us);
  if (!lying.empty()) {
    tiers_.remote->supply_rows(lying.of(request.context), mark, *found.rows_found_, lying.rows);
  }
}

}  // namespace modcache::cache
