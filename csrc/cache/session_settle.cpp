// SPDX-License-Identifier: Apache-2.0
//
// Session: the answers of tiers, taken over as hits and conflicts of a batch.
#include <algorithm>
#include <utility>

#include "cache/session.h"

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

}  // namespace modcache::cache
