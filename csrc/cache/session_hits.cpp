// SPDX-License-Identifier: Apache-2.0
//
// The look-ups of Session without single flight: one for hosts that do not wait, and those that
// answer plain hits and leave every other call as if it had not been made.
#include <utility>

#include "cache/session.h"

namespace modcache::cache {

EntryPtr Session::lookup_at_once(const Request& given, bool may_write) {
  const Request one = as_compared(given);
  const BatchRequest request = batch_of(one);
  BatchFound found = find_all(request, may_write);
  return take(request, found, 0, may_write);
}

EntryPtr Session::find_in_memory(const Request& given, bool may_write,
                                 bool (*wanted)(const Entry&)) {
  const store::EntryId id = given.id();
  TierFound found = tiers_.nearest_first.front()->find(TierKeys::of_one(given.context, id),
                                                       Access::kRead, OnMiss::kIgnore);
  if (found.entries.empty() || found.entries[0].entry == nullptr) return nullptr;
  EntryPtr entry = std::move(found.entries[0].entry);
  // Most that is not wanted is known without reading the input.
  if (!wanted(*entry)) return nullptr;
  const Request request = as_compared(given);
  if (!matches(request, entry->signature, entry->sample.bytes())) return nullptr;
  if (!spares(1)) return nullptr;
  count_hits(*request.context,
             {tiers_.nearest_first.front()->hits(), 1, entry->run_us.value_or(0),
              static_cast<std::int64_t>(entry->value->payload_size_bytes())},
             may_write);
  return entry;
}

EntryPtr Session::find_on_disk(const Request& given, bool may_write,
                               bool (*wanted)(std::string_view)) {
  const Request one = as_compared(given);
  const BatchRequest request = batch_of(one);
  BatchFound found = find_all(request, may_write, Counting::kNone, Reach::kNear);
  if (found.is_missing(0) || !found.is_row(0)) return nullptr;
  if (!wanted(found.rows().header(found.row(0)).value_header)) return nullptr;
  if (!spares(1)) return nullptr;
  count_hits(*one.context,
             {tiers_.nearest_first[found.rows_[0].tier]->hits(), 1, run_us_of(found, 0),
              bytes_of(found, 0)},
             may_write);
  return take(request, found, 0, may_write);
}

std::optional<BatchFound> Session::find_hits(const BatchRequest& request, bool may_write) {
  BatchFound found = find_all(request, may_write, Counting::kNone, Reach::kNear);
  std::vector<HitCounts> counts;
  counts.reserve(tiers_.nearest_first.size());
  for (const auto& tier : tiers_.nearest_first) counts.push_back({tier->hits()});
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_missing(i)) return std::nullopt;
    HitCounts& of_tier = counts[found.rows_[i].tier];
    ++of_tier.hits;
    of_tier.saved_us += run_us_of(found, i);
    of_tier.bytes += bytes_of(found, i);
  }
  if (!spares(found.size())) return std::nullopt;
  for (const HitCounts& of_tier : counts) count_hits(*request.context, of_tier, may_write);
  return found;
}

void Session::take_back_all(const BatchRequest& request, BatchFound& found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_missing(i)) take_back(*request.context, found, i);
  }
}

}  // namespace modcache::cache
