// SPDX-License-Identifier: Apache-2.0
#include "cache/session.h"

#include <utility>

namespace modcache::cache {
Session::Session(Settings settings, Tiers tiers, const Shared& shared)
    : settings_(std::move(settings)),
      match_(settings_.match),
      tiers_(std::move(tiers)),
      flights_(shared.flights),
      stats_(shared.stats),
      places_(shared.places),
      read_ahead_(shared.read_ahead),
      conflicts_(shared.conflicts),
      seen_(shared.seen),
      verified_(shared.verified),
      run_times_(shared.run_times) {}

bool Session::compares_input(const std::string& scope, const InputSource* input) {
  if (input == nullptr || !match_.compares_samples()) return false;
  return !input->is_costly() || conflicts_.samples_costly_input(scope);
}

InputSample Session::sample_to_keep(const InputSource& input, std::size_t row) const {
  const bool is_wanted = !input.is_costly() || match_.compares_samples();
  return is_wanted ? input.measure(row).sample() : InputSample();
}

BatchRequest Session::batch_of(const Request& request) {
  return {request.context, std::span<const std::string_view>(&request.key, 1), request.signature,
          request.input,   std::span<const std::size_t>(&request.row, 1),      Form::kWhole};
}

Request Session::as_compared(const Request& given) {
  Request request = given;
  if (!compares_input(given.context->scope, given.input)) request.input = nullptr;
  return request;
}

BatchFound Session::lookup_all(const BatchRequest& request, bool may_write) {
  BatchFound found = find_all(request, may_write);
  if (request.may_be_verified && settings_.verify_share > 0) draw_verified(request, found);
  bring_to_device(request, found);
  return found;
}

BatchFound Session::find_all(const BatchRequest& request, bool may_write, Counting counting,
                             Reach reach) {
  const OnMiss on_miss = counting == Counting::kAtOnce ? OnMiss::kCount : OnMiss::kIgnore;
  BatchFound found(request.keys.size());
  found.may_write_ = may_write;
  found.completed_runs_ = flights_.completed_runs();
  found.addresses_ = store::addresses_of(request.context->digest, request.keys);
  RemainingKeys remaining({request.context, request.keys, found.addresses_});
  for (std::size_t tier = 0; tier < tiers_.nearest_first.size() && !remaining.empty(); ++tier) {
    if (reach == Reach::kNear && tiers_.nearest_first[tier]->is_far()) break;
    TierFound answer =
        tiers_.nearest_first[tier]->find(remaining.keys(), access(may_write), on_miss);
    if (answer.is_empty()) continue;
    if (tier + 1 == tiers_.nearest_first.size()) {
      settle(request, tier, remaining, answer, {access(may_write), counting}, found);
      break;
    }
    RemainingKeys unanswered = remaining.without(answer);
    settle(request, tier, remaining, answer, {access(may_write), counting}, found);
    remaining = std::move(unanswered);
  }
  return found;
}

void Session::bring_to_device(const BatchRequest& request, const BatchFound& found) {
  if (places_.of(request.context->scope).kind != Place::Kind::kDevice) return;
  std::vector<std::string> brought;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_row(i)) brought.emplace_back(request.keys[i]);
  }
  // Over a set larger than memory the last ones used are no better than any others: they stay.
  bring({tiers_.memory, tiers_.disk, request.context, request.form, std::move(brought),
         /*pushes_out=*/false});
}

void Session::count_hits(const store::Context& context, const HitCounts& counts, bool may_write) {
  stats_.add_hits(context, counts, may_write);
  conflicts_.record_matches(context.scope, counts.hits);
}

std::int64_t Session::run_us_of(const BatchFound& found, std::size_t i) const {
  const BatchFound::Row& row = found.rows_[i];
  return row.held.entry != nullptr ? row.held.entry->run_us.value_or(0)
                                   : found.rows_found_->run_us(row.row);
}

std::int64_t Session::bytes_of(const BatchFound& found, std::size_t i) const {
  const BatchFound::Row& row = found.rows_[i];
  return static_cast<std::int64_t>(row.held.entry != nullptr
                                       ? row.held.entry->value->payload_size_bytes()
                                       : found.rows_found_->payload_size_bytes(row.row));
}

void Session::take_back(const store::Context& context, BatchFound& found, std::size_t i) {
  stats_.add_hits(context,
                  {tiers_.nearest_first[found.rows_[i].tier]->hits(), -1, -run_us_of(found, i),
                   -bytes_of(found, i)},
                  found.may_write_);
  found.rows_[i] = {};
}

void Session::refuse(const BatchRequest& request, BatchFound& found, std::size_t i,
                     const Status& broken, bool may_write) {
  if (found.is_missing(i)) return;
  const BatchFound::Row row = found.rows_[i];
  take_back(*request.context, found, i);
  if (row.held.entry != nullptr) return;
  tiers_.nearest_first[row.tier]->refuse({*request.context, request.keys[i], found.addresses_[i]},
                                         found.rows_found_->sequence(row.row), broken,
                                         access(may_write));
}

void Session::refuse_as_conflict(const BatchRequest& request, BatchFound& found, std::size_t i) {
  if (found.is_missing(i)) return;
  stats_.add(request.context->scope, Counter::kKeyConflicts);
  warn_of_conflict(request.keys[i], request.context->scope, request.signature_of(i),
                   found.signature(i));
  take_back(*request.context, found, i);
  found.conflicts_.push_back(i);
}

EntryPtr Session::take(const BatchRequest& request, BatchFound& found, std::size_t i,
                       bool may_write) {
  if (found.is_missing(i)) return nullptr;
  BatchFound::Row& row = found.rows_[i];
  if (row.tier == 0) return std::move(row.held.entry);
  const store::EntryId id{*request.context, request.keys[i], found.addresses_[i]};
  HeldEntry held = std::move(row.held);
  std::size_t kept_by = row.tier;
  if (held.entry == nullptr) {
    const HeldEntry there = held;  // where keep_nearer() kept it
    const std::uint64_t size_bytes = found.rows_found_->payload_size_bytes(row.row);
    // One that waits for its confirmation may still prove to be none.
    const bool is_kept = !found.rows_found_->is_provisional(row.row) &&
                         has_nearer_place_for(size_bytes, row.tier, may_write);
    held = tiers_.nearest_first[row.tier]->read(id, *found.rows_found_, row.row, access(may_write),
                                                is_kept ? Reading::kToKeep : Reading::kOnce);
    if (held.entry == nullptr) {
      take_back(*request.context, found, i);
      return nullptr;
    }
    if (!is_kept) return std::move(held.entry);
    if (found.is_outdated_ && tiers_.nearest_first[row.tier]->is_far()) {
      return std::move(held.entry);
    }
    // keep_nearer() left it out where something newer came there meanwhile.
    if (tiers_.nearest_first[row.tier]->is_far() && row.kept_by == row.tier &&
        is_nearer_than(row.tier, id)) {
      return std::move(held.entry);
    }
    kept_by = row.kept_by;
    if (there.sequence != 0) {
      held.sequence = there.sequence;
      held.removals = there.removals;
    }
  }
  OneOrMany<EntryPtr> entries(1);
  entries[0] = std::move(held.entry);
  OneOrMany<Kept> kept(1);
  kept[0] = {held.sequence, held.removals, /*is_kept=*/true};
  for (std::size_t tier = kept_by; tier-- > 0;) {
    if (!may_bring_into(tier, may_write)) continue;
    tiers_.nearest_first[tier]->store(TierKeys::of_one(request.context, id), entries,
                                      /*replaces=*/false, kept);
  }
  if (tiers_.nearest_first[row.tier]->is_far() && found.still_holds_ && !found.still_holds_()) {
    take_back_nearer(row.tier, TierKeys::of_one(request.context, id),
                     std::span<const Kept>(&kept[0], 1));
  }
  return std::move(entries[0]);
}

bool Session::is_nearer_than(std::size_t tier, const store::EntryId& id) const {
  while (tier-- > 0) {
    if (tiers_.nearest_first[tier]->contains(id)) return true;
  }
  return false;
}

// The nearest tier is this process's own memory.
bool Session::may_bring_into(std::size_t tier, bool may_write) { return tier == 0 || may_write; }

bool Session::has_nearer_place_for(std::uint64_t size_bytes, std::size_t tier,
                                   bool may_write) const {
  while (tier-- > 0) {
    if (may_bring_into(tier, may_write) && tiers_.nearest_first[tier]->has_place_for(size_bytes)) {
      return true;
    }
  }
  return false;
}

EntryPtr Session::lookup(const Request& given, bool may_write, SingleFlight::Lead& lead,
                         Missed* missed) {
  const Request one = as_compared(given);
  const BatchRequest request = batch_of(one);
  const auto take_one = [&](BatchFound& found) {
    if (missed != nullptr) {
      if (settings_.verify_share > 0) draw_verified(request, found);
      *missed = {!found.conflicts().empty(), !found.verified().empty()};
    }
    return take(request, found, 0, may_write);
  };
  Reach reach = Reach::kAll;
  while (true) {
    BatchFound found = find_all(request, may_write, Counting::kAtOnce, reach);
    reach = Reach::kNear;
    EntryPtr entry = take_one(found);
    if (entry != nullptr || !may_write || !found.verified().empty()) return entry;
    BatchLead rows = lead_rows(found);
    if (rows.led.empty()) {
      SingleFlight::Waited waited = wait_for(request, rows.awaited);
      if (waited.look_again) continue;
      lead = std::move(waited.lead);
      return nullptr;
    }
    lead = std::move(rows.lead);
    if (!rows.look_again) return nullptr;
    // Results of runs of this process are near.
    found = find_all(request, may_write, Counting::kAtOnce, Reach::kNear);
    entry = take_one(found);
    if (entry != nullptr || !found.verified().empty()) {
      lead.stored();
      lead.give_up();
    }
    return entry;
  }
}

void Session::draw_verified(const BatchRequest& request, BatchFound& found) {
  std::vector<std::size_t> hits;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_missing(i)) hits.push_back(i);
  }
  for (const std::size_t place : HitDraw::chosen(settings_.verify_share, hits.size())) {
    take_back(*request.context, found, hits[place]);
    found.verified_.push_back(hits[place]);
  }
}

void Session::note_run(const std::string& scope, std::int64_t run_us) {
  run_times_.note(scope, run_us);
}

EntryPtr Session::peek(const Request& request) {
  const store::EntryId id = request.id();
  for (const auto& tier : tiers_.nearest_first) {
    TierFound found =
        tier->find(TierKeys::of_one(request.context, id), Access::kRead, OnMiss::kIgnore);
    if (!found.has(0)) continue;
    const HeldEntry held = found.entries.empty()
                               ? tier->read(id, *found.rows, 0, Access::kRead, Reading::kToKeep)
                               : std::move(found.entries[0]);
    if (held.entry == nullptr) return nullptr;
    const Entry& entry = *held.entry;
    if (matches(request, entry.signature, entry.sample.bytes())) return held.entry;
    note_conflict(request, entry.signature, entry.stored_at_us);
    return nullptr;
  }
  return nullptr;
}

std::optional<EntryInfo> Session::look(const Request& request) {
  const store::EntryId id = request.id();
  std::optional<EntryInfo> info;
  // The nearest tier's answer counts; but it may not know when the entry was stored.
  for (auto tier = tiers_.nearest_first.rbegin(); tier != tiers_.nearest_first.rend(); ++tier) {
    std::optional<EntryInfo> seen = (*tier)->look(id);
    if (!seen.has_value()) continue;
    if (seen->stored_at_us == 0 && info.has_value()) seen->stored_at_us = info->stored_at_us;
    info = std::move(seen);
  }
  if (info.has_value()) {
    info->matches = matches(request, info->signature, info->sample.bytes());
  }
  return info;
}

bool Session::contains(const Request& request) {
  return is_nearer_than(tiers_.nearest_first.size(), request.id());
}

std::size_t Session::first_far() const {
  std::size_t tier = 0;
  while (tier < tiers_.nearest_first.size() && !tiers_.nearest_first[tier]->is_far()) ++tier;
  return tier;
}

void Session::prefetch(const ContextPtr& context, Form form, std::span<const std::string_view> keys,
                       std::vector<bool>& is_there) {
  const OneOrMany<Digest128> addresses = store::addresses_of(context->digest, keys);
  RemainingKeys remaining({context, keys, addresses});
  for (const auto& tier : tiers_.nearest_first) {
    if (tier == tiers_.disk || tier->is_far() || remaining.empty()) continue;
    // Entries in memory count as used, so that those that are brought do not push them out.
    const TierFound answer = tier->find(remaining.keys(), Access::kRead, OnMiss::kIgnore);
    for (std::size_t i = 0; i < remaining.size(); ++i) {
      if (answer.has(i)) is_there[remaining.row(i)] = true;
    }
    if (!answer.is_empty()) remaining = remaining.without(answer);
  }
  if (remaining.empty()) return;
  // Whoever asks does not wait until the disk has read anything: the index tells what is there.
  const std::vector<bool> are_on_disk = tiers_.disk->are_there(remaining.keys());
  std::vector<std::string> brought;
  for (std::size_t i = 0; i < remaining.size(); ++i) {
    if (!are_on_disk[i]) continue;
    is_there[remaining.row(i)] = true;
    brought.emplace_back(keys[remaining.row(i)]);
  }
  bring({tiers_.memory, tiers_.disk, context, form, std::move(brought)});
}

void Session::bring(ReadAhead::Request request) {
  if (request.keys.empty() || settings_.memory_bytes == 0) return;
  read_ahead_.ask(std::move(request));
}

}  // namespace modcache::cache
