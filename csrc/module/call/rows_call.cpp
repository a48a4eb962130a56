// SPDX-License-Identifier: Apache-2.0
#include "module/call/rows_call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "module/call/stored_rows.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/storable.h"

namespace modcache::module {
namespace {

using cache::Counter;

constexpr const char* kUnclearRows =
    "its input has a list with as many items as there are rows, or a tensor [1, rows], and nothing "
    "tells whether these go row by row; pad all batches to one length instead, without mask";

std::vector<std::size_t> first_numbers(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

RowsCall::RowsCall(CallParts parts, BatchKeys keys)
    : OpenCall(std::move(parts), tensor::Per::kRow),
      keys_(std::move(keys)),
      output_(empty_output()) {
  const std::vector<std::int64_t>& lists = parts_.input.list_sizes;
  const auto rows = static_cast<std::int64_t>(keys_.rows());
  if (std::find(lists.begin(), lists.end(), rows) != lists.end()) parts_.runs_whole = true;
  if (!parts_.padding.has_value()) return;
  for (const std::int64_t length : parts_.padding->lengths) {
    std::string& signature = own_signatures_[length];
    if (signature.empty()) signature = tensor::signature_of_length(parts_.input.signature, length);
  }
  learned_ = learned_padding(padded_form());
  if (parts_.runs_whole) learned_ = refused_padding(kUnclearRows);
}

// Returns the digest that names what trials show: a module that is given position_ids may be cached
// where it is not without them, under one context.
Digest128 RowsCall::padded_form() const {
  Xxh3Hasher hasher;
  hasher.add(context_->digest.bytes());
  hasher.add(parts_.input.signature);
  return hasher.digest();
}

// Returns whether stored rows were cut in other dimensions than the module's results are.
bool RowsCall::has_odd_padding() const {
  if (!learned_.has_value() || learned_->is_refused() || learned_->dims.empty()) return false;
  const auto dims = output_.padded_dims();
  return dims.has_value() && *dims != learned_->dims;
}

void RowsCall::trust_padding(std::vector<tensor::DimSet> dims) {
  if (learned_.has_value() && learned_->is_refused()) return;
  LearnedPadding known;
  known.dims = std::move(dims);
  known.shown_share = 1;
  known.agreements = kEnoughAgreements;
  known.are_sizes_known = true;
  learned_ = std::move(known);
}

// The batch is assembled in pinned memory when it goes on to a device.
tensor::RowsOutput RowsCall::empty_output() const {
  const auto& device = parts_.input.device;
  const bool is_on_device = device.has_value() && !device->is_cpu();
  const bool is_pinned =
      is_on_device || session_->place_of(parts_.scope).kind == cache::Place::Kind::kPinned;
  return tensor::RowsOutput(keys_.rows(), is_pinned,
                            parts_.padding.has_value() ? &*parts_.padding : nullptr);
}

// A part of the distinct keys, and the request for them.
struct RowsCall::Part {
  Part(const RowsCall& call, std::vector<std::size_t> of_distinct)
      : places(std::move(of_distinct)) {
    keys.reserve(places.size());
    input_rows.reserve(places.size());
    for (const std::size_t place : places) {
      keys.push_back(call.keys_.distinct()[place]);
      input_rows.push_back(call.row_of(place));
      if (call.parts_.padding.has_value()) signatures.push_back(call.signature_of(place));
    }
  }
  cache::BatchRequest request(const RowsCall& call) const {
    return {call.context_,
            keys,
            call.parts_.input.signature,
            call.compares_input_ ? &call.input_ : nullptr,
            input_rows,
            cache::Form::kRow,
            signatures,
            /*may_be_verified=*/true};
  }
  std::vector<std::size_t> places_of(const std::vector<std::size_t>& rows) const {
    std::vector<std::size_t> found;
    found.reserve(rows.size());
    for (const std::size_t row : rows) found.push_back(places[row]);
    return found;
  }

  std::vector<std::size_t> places;
  std::vector<std::string_view> keys;
  std::vector<std::size_t> input_rows;
  std::vector<std::string_view> signatures;  // empty: all rows have one
};

std::optional<std::vector<std::int64_t>> RowsCall::next_rows() {
  if (!is_begun_) {
    is_begun_ = true;
    const bool is_refused = learned_.has_value() && learned_->is_refused();
    if (grad_is_unknown_ || parts_.scope.empty() || is_refused) return whole_input();
    compares_input_ = session_->compares_input(parts_.scope, &input_);
    if (has_conflicts_inside()) return whole_input();
    std::vector<std::size_t> all = first_numbers(keys_.distinct().size());
    const bool looks_up = may_read(mode_) && !always_runs(mode_);
    is_bypassed_ =
        looks_up && session_->bypasses(parts_.scope, static_cast<std::size_t>(keys_.rows()));
    if (looks_up && !is_bypassed_) {
      look_up_and_lead(std::move(all));
    } else if (is_bypassed_ || !is_refused_by_row()) {
      mine_ = std::move(all);
    }
  }
  if (needs_whole_input_) return whole_input();
  while (mine_.empty() && !awaited_.empty()) wait_for_others();
  if (needs_whole_input_) return whole_input();
  if (mine_.empty()) {
    lead_.give_up();
    return fit_together() ? std::nullopt : std::optional(whole_input());
  }
  if (parts_.runs_whole) return whole_input();
  running_keys_ = std::exchange(mine_, {});
  running_.clear();
  for (const std::size_t i : running_keys_) running_.push_back(keys_.first_row(i));
  take_samples();
  return running_;
}

// Returns whether all rows are there. Otherwise those that were found cannot be used.
bool RowsCall::fit_together() {
  if (is_whole_run_) return true;
  if (output_.has_odd_stored_rows() || has_odd_padding()) {
    refuse_stored_rows();
    return false;
  }
  return !has_odd_constants();
}

bool RowsCall::has_conflicts_inside() {
  if (keys_.repeated().empty() || !(compares_input_ || parts_.padding.has_value())) return false;
  std::size_t conflicts = 0;
  std::size_t first_row = 0;
  for (const auto& [row, same_as] : keys_.repeated()) {
    const bool has_other_length = parts_.padding.has_value() &&
                                  parts_.padding->lengths[row] != parts_.padding->lengths[same_as];
    const bool matches =
        !compares_input_ || input_.measure(row).matches(input_.measure(same_as).sample().bytes());
    if (!has_other_length && matches) continue;
    if (conflicts++ == 0) first_row = same_as;
  }
  if (conflicts == 0) return false;
  std::size_t place = 0;
  while (row_of(place) != first_row) ++place;
  session_->note_conflict_in_batch(request(place), conflicts);
  return true;
}

void RowsCall::reject_hits() {
  if (needs_whole_input_) return;  // after refuse_rows_apart()
  needs_whole_input_ = true;
  replaces_.assign(keys_.distinct().size(), true);
  cache::Cache::instance().counters().add(parts_.scope, Counter::kKeyConflicts,
                                          static_cast<std::int64_t>(keys_.rows()));
  log_once(LogLevel::kWarning, "other-type:" + parts_.who(),
           "stored results of " + parts_.who() +
               " have another type than the method declares: they are computed anew, and replaced");
}

void RowsCall::refuse_rows_apart(const std::string& why) {
  proof_ = RowProof::refuted(parts_.who() + ": " + why);
  needs_whole_input_ = true;
}

// Returns whether the results of this context are known to be no rows. The call then is bypassed,
// and was counted.
bool RowsCall::is_refused_by_row() {
  look_up_proof();
  if (!proof_.is_refuted()) return false;
  is_bypassed_ = true;
  needs_whole_input_ = true;
  note_refusal("rows", proof_.why_not, keys_.rows());
  return true;
}

void RowsCall::note_refusal(const char* cause, const std::string& why, std::size_t rows) {
  outcome_.refused_for = cause;
  outcome_.refusal = "not caching " + why;
  refuse(parts_, *session_, Counter::kBypassedRows, static_cast<std::int64_t>(rows), cause,
         outcome_.refusal);
}

void RowsCall::look_up_proof() {
  if (proof_.is_known() || std::exchange(has_looked_up_proof_, true)) return;
  proof_ = row_proof_of(*session_, *context_);
}

void RowsCall::trust_rows() {
  if (!proof_.is_known()) proof_.verdict = RowProof::Verdict::kProven;
}

// A constant is stored with each row. Rows that meet here show whether it is one.
bool RowsCall::has_odd_constants() {
  if (proof_.constants.empty() || whole_.has_value()) return false;
  repeat_rows();
  whole_ = output_.together(parts_.input.device);
  if (whole_.has_value()) return false;
  refuse_rows_apart(
      "an output that was equal in two batches, and was stored with each row, differs between "
      "rows; use one key for the whole input");
  note_row_proof(*session_, *context_, proof_);
  needs_whole_input_ = false;
  return true;
}

// The directory has rows of another kind than the module returned, so those are not the module's
// own.
void RowsCall::refuse_stored_rows() {
  replaces_.assign(keys_.distinct().size(), true);
  cache::Cache::instance().counters().add(parts_.scope, Counter::kCorrupt);
  log_once(LogLevel::kWarning, "other-kind:" + parts_.who(),
           "stored rows of " + parts_.who() +
               " have another dtype or number of dimensions than it gives: they are computed anew, "
               "and replaced");
}

// Starts over: rows that were found so far are not used.
std::vector<std::int64_t> RowsCall::whole_input() {
  needs_whole_input_ = false;
  is_whole_run_ = true;
  whole_.reset();
  mine_.clear();
  awaited_.clear();
  output_ = empty_output();
  running_.resize(keys_.rows());
  std::iota(running_.begin(), running_.end(), 0);
  running_keys_ = first_numbers(keys_.distinct().size());
  take_samples();
  return running_;
}

// Adds to mine_ what is missing and not run by others.
void RowsCall::look_up_and_lead(std::vector<std::size_t> places) {
  if (places.empty()) return;
  const Part part(*this, std::move(places));
  const cache::BatchRequest request = part.request(*this);
  cache::BatchFound found = session_->lookup_all(request, may_write(mode_));
  add_found(part, request, found);
  const std::vector<std::size_t> missing = found.missing();
  // Where all rows are found, what is stored says that it was proven.
  if (!missing.empty() && !needs_whole_input_ && !is_refused_by_row()) lead(part, found, missing);
  if (!std::is_sorted(mine_.begin(), mine_.end())) std::sort(mine_.begin(), mine_.end());
}

void RowsCall::lead(const Part& part, const cache::BatchFound& found,
                    const std::vector<std::size_t>& missing) {
  const auto add_to = [](std::vector<std::size_t>& all, std::vector<std::size_t> more) {
    if (all.empty()) all.swap(more);
    all.insert(all.end(), more.begin(), more.end());
  };
  // Nothing is stored, so other threads gain nothing by waiting for these rows.
  if (!may_write(mode_)) return add_to(mine_, part.places_of(missing));
  cache::BatchLead lead = session_->lead_rows(found);
  lead_ = std::move(lead.lead);
  std::vector<std::size_t> led = part.places_of(lead.led);
  awaited_ = part.places_of(lead.awaited);
  // A run that ended between the lookup and the lead may have stored some of these rows.
  if (lead.look_again && !led.empty()) {
    const Part again(*this, std::move(led));
    const cache::BatchRequest question = again.request(*this);
    cache::BatchFound found_now = session_->lookup_led(question, lead_);
    add_found(again, question, found_now);
    led = again.places_of(found_now.missing());
  }
  add_to(mine_, std::move(led));
}

// Gives up its own leads first: two batches that each wait for a row of the other's would wait for
// ever.
void RowsCall::wait_for_others() {
  lead_.give_up();
  const Part part(*this, std::exchange(awaited_, {}));
  cache::SingleFlight::Waited waited =
      session_->wait_for(part.request(*this), first_numbers(part.places.size()));
  if (waited.look_again) {
    look_up_and_lead(part.places);
  } else {
    lead_ = std::move(waited.lead);
    mine_ = part.places;
  }
}

void RowsCall::add_found(const Part& part, const cache::BatchRequest& request,
                         cache::BatchFound& found) {
  add_stored_rows(parts_, {*session_, request, found, may_write(mode_), keys_.rows()}, output_);
  // Stored rows that are not marked as unproven were proven.
  const tensor::RowMarks* const marks = output_.row_marks();
  // A value that was taken for a constant may have proved to be none.
  if (marks != nullptr && !marks->constants.empty() && is_refused_by_row()) return;
  if (marks != nullptr && !proof_.is_known() && (!marks->are_unproven || keys_.rows() > 1)) {
    proof_.verdict = RowProof::Verdict::kProven;
    proof_.constants = marks->constants;
    proof_.holds_for_one = !marks->are_unproven_alone;
  }
  if (!found.verified().empty()) {
    drawn_.resize(keys_.distinct().size(), false);
    for (const std::size_t place : part.places_of(found.verified())) {
      drawn_[place] = true;
      mine_.push_back(place);
    }
  }
  if (!found.conflicts().empty()) {
    replaces_.resize(keys_.distinct().size(), false);
    for (const std::size_t place : part.places_of(found.conflicts())) replaces_[place] = true;
  }
  if (!parts_.padding.has_value() || learned_.has_value()) return;
  // Stored rows show the dimensions, but not whether the module heeds its mask.
  if (auto dims = output_.padded_dims()) {
    learned_.emplace();
    learned_->dims = *std::move(dims);
  }
}

void RowsCall::take_samples() {
  samples_.clear();
  if (!may_ever_store() || is_bypassed_) return;
  samples_.reserve(running_keys_.size());
  for (const std::size_t place : running_keys_) {
    samples_.push_back(session_->sample_to_keep(input_, row_of(place)));
  }
}

void RowsCall::repeat_rows() {
  for (const auto& [row, same_as] : keys_.repeated()) output_.repeat(row, same_as);
}

std::optional<tensor::Flat> RowsCall::together() {
  if (!is_whole_run_) {
    if (!whole_.has_value()) repeat_rows();
    // The value of a repeated key came from the memory of this call, which counts as a hit in
    // memory.
    if (!is_refused_ && !always_runs(mode_) && !keys_.repeated().empty()) {
      cache::Cache::instance().counters().add(parts_.scope, Counter::kHitsMemory,
                                              static_cast<std::int64_t>(keys_.repeated().size()));
    }
  }
  note_end();
  if (whole_.has_value()) return std::exchange(whole_, std::nullopt);
  return output_.together(parts_.input.device);
}

std::vector<tensor::Flat> RowsCall::apart() { return output_.apart(parts_.input.device); }

}  // namespace modcache::module
