// SPDX-License-Identifier: Apache-2.0
#include "cache/session.h"

#include <cassert>
#include <utility>

namespace modcache::cache {
namespace {

std::size_t input_row_of(const BatchRequest& batch, std::size_t i) {
  return batch.input != nullptr ? batch.rows[i] : 0;
}

// Key i of the batch as a question of its own.
Request request_of(const BatchRequest& batch, std::size_t i) {
  return {batch.context, batch.keys[i], batch.signature_of(i), batch.input, input_row_of(batch, i)};
}

}  // namespace

Session::Session(Settings settings, Tiers tiers, const Shared& shared)
    : settings_(std::move(settings)),
      match_(settings_.match),
      tiers_(std::move(tiers)),
      flights_(shared.flights),
      stats_(shared.stats),
      places_(shared.places),
      read_ahead_(shared.read_ahead),
      conflicts_(shared.conflicts),
      gate_(shared.gate),
      verified_(shared.verified),
      run_times_(shared.run_times) {}

bool Session::compares_input(const std::string& scope, const InputSource* input) {
  if (input == nullptr || !match_.compares_samples()) return false;
  return !input->is_costly() || conflicts_.looks_at_costly(scope, settings_.match_device_share);
}

InputSample Session::sample_to_keep(const InputSource& input, std::size_t row) const {
  MeasuredInput measured;
  const bool is_wanted = !input.is_costly() || match_.compares_samples();
  return is_wanted && input.measure(row, measured) ? measured.sample() : InputSample();
}

BatchRequest Session::batch_of(const Request& request) {
  return {request.context, Span<std::string_view>::of_one(request.key), request.signature,
          request.input,   Span<std::size_t>::of_one(request.row),      Form::kWhole};
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

BatchFound Session::find_all(const BatchRequest& request, bool may_write, Counting counting) {
  const OnMiss on_miss = counting == Counting::kAtOnce ? OnMiss::kCount : OnMiss::kIgnore;
  BatchFound found(request.keys.size());
  found.may_write_ = may_write;
  found.completed_runs_ = flights_.completed_runs();
  found.addresses_ = store::addresses_of(request.context->digest, request.keys);
  RemainingKeys remaining({request.context, request.keys, found.addresses_});
  for (std::size_t tier = 0; tier < tiers_.nearest_first.size() && !remaining.empty(); ++tier) {
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

void Session::settle(const BatchRequest& request, std::size_t tier, const RemainingKeys& asked,
                     TierFound& answer, Terms terms, BatchFound& found) {
  if (answer.entries.empty()) {
    settle_rows(request, tier, asked, *answer.rows, terms, found);
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
                          FoundRows& rows, Terms terms, BatchFound& found) {
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
    found.rows_[i].disk_row = static_cast<std::uint32_t>(row);
  }
  assert(!found.disk_.has_value());
  found.disk_ = std::move(rows);
  if (terms.counting == Counting::kAtOnce) count_hits(*request.context, counts, found.may_write_);
}

void Session::bring_to_device(const BatchRequest& request, const BatchFound& found) {
  if (places_.of(request.context->scope).kind != Place::Kind::kDevice) return;
  std::vector<std::string> brought;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_on_disk(i)) brought.emplace_back(request.keys[i]);
  }
  // Over a set larger than memory the last ones used are no better than any others: they stay.
  bring({tiers_.memory, tiers_.disk, request.context, request.form, std::move(brought),
         /*pushes_out=*/false});
}

void Session::count_hits(const store::Context& context, const HitCounts& counts, bool may_write) {
  stats_.add_hits(context, counts, may_write);
  conflicts_.note_agreements(context.scope, counts.hits);
}

std::int64_t Session::run_us_of(const BatchFound& found, std::size_t i) const {
  const BatchFound::Row& row = found.rows_[i];
  return row.held.entry != nullptr ? row.held.entry->run_us.value_or(0)
                                   : found.disk_->run_us(row.disk_row);
}

std::int64_t Session::bytes_of(const BatchFound& found, std::size_t i) const {
  const BatchFound::Row& row = found.rows_[i];
  return static_cast<std::int64_t>(row.held.entry != nullptr
                                       ? row.held.entry->value->payload_size_bytes()
                                       : found.disk_->payload_size_bytes(row.disk_row));
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
                                         found.disk_->sequence(row.disk_row), broken,
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
  if (held.entry == nullptr) {
    const std::uint64_t size_bytes = found.disk_->payload_size_bytes(row.disk_row);
    // One that waits for its confirmation may still prove to be none.
    const bool is_kept = !found.disk_->is_provisional(row.disk_row) &&
                         has_nearer_place_for(size_bytes, row.tier, may_write);
    held = tiers_.nearest_first[row.tier]->read(id, *found.disk_, row.disk_row, access(may_write),
                                                is_kept ? Reading::kToKeep : Reading::kOnce);
    if (held.entry == nullptr) {
      take_back(*request.context, found, i);
      return nullptr;
    }
    if (!is_kept) return std::move(held.entry);
  }
  OneOrMany<EntryPtr> entries(1);
  entries[0] = std::move(held.entry);
  OneOrMany<Kept> kept(1);
  kept[0] = {held.sequence, held.removals, /*is_kept=*/true};
  for (std::size_t tier = row.tier; tier-- > 0;) {
    if (!may_bring_into(tier, may_write)) continue;
    tiers_.nearest_first[tier]->store(TierKeys::of_one(request.context, id), entries,
                                      /*replaces=*/false, kept);
  }
  return std::move(entries[0]);
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
  while (true) {
    BatchFound found = find_all(request, may_write);
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
    found = find_all(request, may_write);
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

bool Session::contains(const Request& request) { return contains(request.id()); }

bool Session::contains(const store::EntryId& id) {
  for (const auto& tier : tiers_.nearest_first) {
    if (tier->contains(id)) return true;
  }
  return false;
}

void Session::prefetch(const ContextPtr& context, Form form, Span<std::string_view> keys,
                       std::vector<bool>& is_there) {
  const OneOrMany<Digest128> addresses = store::addresses_of(context->digest, keys);
  RemainingKeys remaining({context, keys, addresses});
  for (const auto& tier : tiers_.nearest_first) {
    if (tier == tiers_.disk || remaining.empty()) continue;
    // Entries in memory count as used, so that those that are brought do not push them out.
    const TierFound answer = tier->find(remaining.keys(), Access::kRead, OnMiss::kIgnore);
    for (std::size_t i = 0; i < remaining.size(); ++i) {
      if (answer.has(i)) is_there[remaining.row(i)] = true;
    }
    if (!answer.is_empty()) remaining = remaining.without(answer);
  }
  if (remaining.empty()) return note_expected(context->scope, addresses, is_there);
  // Whoever asks does not wait until the disk has read anything: the index tells what is there.
  const std::vector<bool> are_on_disk = tiers_.disk->are_there(remaining.keys());
  std::vector<std::string> brought;
  for (std::size_t i = 0; i < remaining.size(); ++i) {
    if (!are_on_disk[i]) continue;
    is_there[remaining.row(i)] = true;
    brought.emplace_back(keys[remaining.row(i)]);
  }
  bring({tiers_.memory, tiers_.disk, context, form, std::move(brought)});
  note_expected(context->scope, addresses, is_there);
}

void Session::bring(ReadAhead::Request request) {
  if (request.keys.empty() || settings_.memory_bytes == 0) return;
  read_ahead_.ask(std::move(request));
}

}  // namespace modcache::cache
