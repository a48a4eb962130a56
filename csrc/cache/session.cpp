// SPDX-License-Identifier: Apache-2.0
#include "cache/session.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"

namespace modcache::cache {

// Never destroyed, as all that is the process's own.
const FoundRows& BatchFound::no_rows() {
  static const FoundRows& none = *new FoundRows;
  return none;
}

std::vector<std::size_t> BatchFound::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const bool is_verified = std::binary_search(verified_.begin(), verified_.end(), i);
    if (is_missing(i) && !is_verified) missing.push_back(i);
  }
  return missing;
}

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

BatchLead Session::lead_rows(const BatchFound& found) {
  const std::vector<std::size_t> missing = found.missing();
  BatchLead rows;
  if (missing.empty()) return rows;
  std::vector<Digest128> addresses;
  addresses.reserve(missing.size());
  for (const std::size_t i : missing) addresses.push_back(found.addresses_[i]);
  std::vector<bool> is_led;
  rows.lead = flights_.try_enter_all(addresses, is_led);
  for (std::size_t place = 0; place < missing.size(); ++place) {
    (is_led[place] ? rows.led : rows.awaited).push_back(missing[place]);
  }
  rows.look_again = flights_.completed_runs() != found.completed_runs_;
  return rows;
}

BatchFound Session::lookup_led(const BatchRequest& request, SingleFlight::Lead& lead) {
  // Results of runs of this process are near.
  BatchFound found = find_all(request, /*may_write=*/true, Counting::kAtOnce, Reach::kNear);
  if (request.may_be_verified && settings_.verify_share > 0) draw_verified(request, found);
  bring_to_device(request, found);
  if (found.missing().size() < found.size()) lead.stored();
  return found;
}

SingleFlight::Waited Session::wait_for(const BatchRequest& request,
                                       const std::vector<std::size_t>& rows) {
  if (rows.empty()) return {};
  std::vector<Digest128> addresses;
  addresses.reserve(rows.size());
  for (const std::size_t row : rows) {
    addresses.push_back(store::address_of(request.context->digest, request.keys[row]));
  }
  return flights_.wait_all(addresses, run_times_.patience(request.context->scope));
}

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
  if (!matches(request, entry->signature, entry->sample.bytes())) {
    // The lookup that follows must compare as well, or it would take this entry for a hit.
    if (request.input != nullptr && request.input->is_costly()) {
      conflicts_.sample_next_costly_input(request.context->scope);
    }
    return nullptr;
  }
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

namespace {

std::size_t input_row_of(const BatchRequest& batch, std::size_t i) {
  return batch.input != nullptr ? batch.rows[i] : 0;
}

// Key i of the batch as a question of its own.
Request request_of(const BatchRequest& batch, std::size_t i) {
  return {batch.context, batch.keys[i], batch.signature_of(i), batch.input, input_row_of(batch, i)};
}

}  // namespace

void Session::settle(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                     TierFound& answer, Terms terms, BatchFound& found) {
  if (answer.entries.empty()) {
    settle_rows(request, tier, asked, answer, terms, found);
  } else {
    settle_entries(request, tier, asked, answer, terms.counting, found);
  }
}

void Session::settle_entries(const BatchRequest& request, std::size_t tier,
                             const RemainingKeys& asked, TierFound& answer, Counting counting,
                             BatchFound& found) {
  HitCounts counts{tiers_.nearest_first[tier]->hits()};
  for (std::size_t place = 0; place < answer.entries.size(); ++place) {
    HeldEntry& held = answer.entries[place];
    if (held.entry == nullptr) continue;
    const std::size_t i = asked.row(place);
    const Entry& entry = *held.entry;
    if (!match_.fits_signature(request.signature_of(i), entry.signature) ||
        !match_.fits_sample(request.input, input_row_of(request, i), entry.sample.bytes())) {
      if (counting == Counting::kAtOnce) {
        note_conflict(request_of(request, i), entry.signature, entry.stored_at_us);
      }
      found.conflicts_.push_back(i);
      continue;
    }
    ++counts.hits;
    counts.saved_us += entry.run_us.value_or(0);
    counts.bytes += static_cast<std::int64_t>(entry.value->payload_size_bytes());
    found.rows_[i].tier = static_cast<std::uint32_t>(tier);
    found.rows_[i].held = std::move(held);
  }
  if (counting == Counting::kAtOnce) count_hits(*request.context, counts, found.may_write_);
}

void Session::settle_rows(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                          TierFound& answer, Terms terms, BatchFound& found) {
  FoundRows& rows = *answer.rows;
  // Signatures are compared once for all rows that share a header.
  std::vector<bool> is_match;
  is_match.reserve(rows.headers().size());
  for (const auto& header : rows.headers()) {
    is_match.push_back(match_.fits_signature(request.signature, header.signature));
  }
  const auto fits = [&](std::size_t row, std::size_t i) {
    return request.own_signatures.empty()
               ? is_match[rows.header_index(row)]
               : match_.fits_signature(request.own_signatures[i], rows.header(row).signature);
  };
  const std::size_t first = found.rows_found_.has_value() ? found.rows_found_->size() : 0;
  HitCounts counts{tiers_.nearest_first[tier]->hits()};
  for (std::size_t row = 0; row < asked.size(); ++row) {
    if (!rows.has(row)) continue;
    const std::size_t i = asked.row(row);
    if (!fits(row, i) ||
        !match_.fits_sample(request.input, input_row_of(request, i), rows.sample(row))) {
      if (terms.counting == Counting::kNone) {
        found.conflicts_.push_back(i);
        continue;
      }
      // A single value that cannot be read is broken, whatever input it was stored for.
      const bool is_read =
          request.form == Form::kRow ||
          tiers_.nearest_first[tier]
                  ->read(asked.keys().id(row), rows, row, terms.access, Reading::kToKeep)
                  .entry != nullptr;
      if (!is_read) continue;
      note_conflict(request_of(request, i), rows.header(row).signature, rows.stored_at_us(row));
      found.conflicts_.push_back(i);
      continue;
    }
    ++counts.hits;
    counts.saved_us += rows.run_us(row);
    counts.bytes += static_cast<std::int64_t>(rows.payload_size_bytes(row));
    found.rows_[i].tier = static_cast<std::uint32_t>(tier);
    found.rows_[i].kept_by = static_cast<std::uint32_t>(tier);
    found.rows_[i].row = static_cast<std::uint32_t>(first + row);
  }
  if (answer.still_holds != nullptr) found.still_holds_ = std::move(answer.still_holds);
  if (tiers_.nearest_first[tier]->is_far() && terms.access == Access::kWrite) {
    keep_nearer(request, tier, asked, rows, found);
  }
  if (first == 0) {
    found.rows_found_ = std::move(rows);
  } else {
    found.rows_found_->append(std::move(rows));
  }
  if (terms.counting == Counting::kAtOnce) count_hits(*request.context, counts, found.may_write_);
}

// Rows that came through a network are kept by the tiers before it as they are, so that they come
// once.
void Session::keep_nearer(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                          const FoundRows& rows, BatchFound& found) {
  ChosenKeys chosen;
  for (std::size_t row = 0; row < asked.size(); ++row) {
    if (found.rows_[asked.row(row)].tier != tier) continue;
    chosen.add(asked.keys().keys[row], asked.keys().addresses[row], row);
  }
  if (chosen.empty()) return;
  const std::vector<std::size_t>& which = chosen.rows;
  OneOrMany<Kept> kept(which.size());
  for (std::size_t nearer = tier; nearer-- > 0;) {
    tiers_.nearest_first[nearer]->keep_rows(chosen.of(request.context), rows, which, request.form,
                                            kept);
  }
  const bool is_any_kept =
      std::any_of(kept.begin(), kept.end(), [](const Kept& one) { return one.is_kept; });
  if (is_any_kept && found.still_holds_ && !found.still_holds_()) {
    found.is_outdated_ = true;
    return take_back_nearer(tier, chosen.of(request.context), kept);
  }
  for (std::size_t k = 0; k < which.size(); ++k) {
    if (kept[k].sequence == 0) continue;
    BatchFound::Row& row = found.rows_[asked.row(which[k])];
    row.held.sequence = kept[k].sequence;
    row.held.removals = kept[k].removals;
    row.kept_by = 1;
  }
}

void Session::take_back_nearer(std::size_t tier, const TierKeys& keys, std::span<const Kept> kept) {
  for (std::size_t nearer = tier; nearer-- > 0;) {
    tiers_.nearest_first[nearer]->take_back(keys, kept);
  }
}

namespace {

thread_local bool admits_all_here = false;

}  // namespace

bool Session::set_admits_all(bool admits_all) { return std::exchange(admits_all_here, admits_all); }

bool Session::admits(const Request& request, const SingleFlight::Lead& lead) {
  if (seen_ == nullptr || admits_all_here) return true;
  const Digest128 address = store::address_of(request.context->digest, request.key);
  return seen_->add(address.low) || lead.is_awaited(address);
}

bool Session::bypasses(const std::string& scope, std::size_t keys) {
  if (!verified_.is_switched_off(scope)) return false;
  stats_.add(scope, Counter::kBypassedVerify, static_cast<std::int64_t>(keys));
  return true;
}

bool Session::store(const Request& request, const EntryPtr& entry, bool replaces) {
  return store_all(request.context, std::span<const std::string_view>(&request.key, 1),
                   std::span<const EntryPtr>(&entry, 1), replaces) == 1;
}

std::size_t Session::store_all(const ContextPtr& context, std::span<const std::string_view> keys,
                               std::span<const EntryPtr> entries, bool replaces) {
  if (keys.empty()) return 0;
  const OneOrMany<Digest128> addresses = store::addresses_of(context->digest, keys);
  const TierKeys all{context, keys, addresses};
  if (settings_.min_run_us > 0) return store_those_worth_it(all, entries, replaces);
  store_in_tiers(all, entries, replaces);
  return keys.size();
}

// An entry that is there must not outlive a newer result, however quickly that was computed. The
// server is not asked.
std::size_t Session::store_those_worth_it(const TierKeys& all, std::span<const EntryPtr> entries,
                                          bool replaces) {
  std::vector<std::string_view> keys;
  std::vector<Digest128> addresses;
  std::vector<EntryPtr> worthy;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& run_us = entries[i]->run_us;
    const bool is_quick = run_us.has_value() && *run_us < settings_.min_run_us;
    if (is_quick && !replaces && !is_nearer_than(first_far(), all.id(i))) continue;
    keys.push_back(all.keys[i]);
    addresses.push_back(all.addresses[i]);
    worthy.push_back(entries[i]);
  }
  if (!keys.empty()) store_in_tiers({all.context(), keys, addresses}, worthy, replaces);
  return keys.size();
}

void Session::store_in_tiers(const TierKeys& keys, std::span<const EntryPtr> entries,
                             bool replaces) {
  OneOrMany<EntryPtr> handed(entries.size());
  std::copy(entries.begin(), entries.end(), handed.begin());
  OneOrMany<Kept> kept(keys.size());
  const auto& tiers = tiers_.nearest_first;
  for (auto tier = tiers.rbegin(); tier != tiers.rend(); ++tier) {
    (*tier)->store(keys, handed, replaces, kept);
  }
  count_kept(keys, entries, kept);
}

// A directory, where there is one, counts for itself what it does not keep.
void Session::count_kept(const TierKeys& keys, std::span<const EntryPtr> entries,
                         std::span<const Kept> kept) {
  std::int64_t not_kept = 0;
  std::uint64_t largest_bytes = 0;
  std::uint64_t kept_bytes = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].is_kept) kept_bytes += entries[i]->value->payload_size_bytes();
    if (kept[i].is_kept) continue;
    ++not_kept;
    largest_bytes = std::max<std::uint64_t>(largest_bytes,
                                            MemoryStore::size_bytes_of(*entries[i], keys.keys[i]));
  }
  const std::string& scope = keys.context()->scope;
  const std::array<Stats::Addition, 2> additions{
      Stats::addition(Counter::kStored, static_cast<std::int64_t>(kept.size()) - not_kept),
      Stats::addition(Counter::kStoredBytes, static_cast<std::int64_t>(kept_bytes))};
  stats_.add(scope, {additions.data(), additions.size()});
  if (not_kept == 0 || settings_.disk_bytes > 0) return;
  stats_.add(scope, Counter::kNotKept, not_kept);
  if (settings_.memory_bytes == 0 || largest_bytes <= settings_.memory_bytes) return;
  log_once(LogLevel::kWarning, "too-large-for-memory",
           "a result takes " + std::to_string(largest_bytes) +
               " bytes, more than all of memory may (option memory: " +
               std::to_string(settings_.memory_bytes) +
               "), and there is no directory (disk=0): such results are not kept; raise 'memory' "
               "or 'disk'");
}

void Session::note_conflict(const Request& request, std::string_view signature,
                            std::int64_t stored_at_us) {
  stats_.add(request.context->scope, Counter::kKeyConflicts);
  warn_of_conflict(request.key, request.context->scope, request.signature, signature);
  if (match_.fits_signature(request.signature, signature)) {
    conflicts_.record_conflict(request.context->scope, stored_at_us);
  }
}

void Session::note_verified(const Request& request, const std::string& who,
                            std::string_view difference, bool may_write) {
  if (!difference.empty()) {
    const store::EntryId id = request.id();
    // The farthest first, so that nothing comes back from there meanwhile.
    for (auto tier = tiers_.nearest_first.rbegin(); tier != tiers_.nearest_first.rend(); ++tier) {
      (*tier)->drop(id, access(may_write));
    }
  }
  verified_.note({request.context->scope, who, request.key, difference});
}

void Session::note_conflict_in_batch(const Request& request, std::size_t rows) {
  stats_.add(request.context->scope, Counter::kKeyConflicts, static_cast<std::int64_t>(rows));
  warn_of_conflict(request.key, request.context->scope, request.signature, request.signature);
  for (std::size_t i = 0; i < rows; ++i) {
    conflicts_.record_conflict(request.context->scope, now_us());
  }
}

std::optional<std::string> Session::find_note(std::string_view about, Mode mode) {
  if (!may_read(mode)) return std::nullopt;
  return tiers_.disk->find_note(about, access(may_write(mode)));
}

void Session::keep_note(std::string_view about, std::string_view text, Mode mode) {
  if (may_write(mode)) tiers_.disk->keep_note(about, text);
}

}  // namespace modcache::cache
