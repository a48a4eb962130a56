// SPDX-License-Identifier: Apache-2.0
//
// Run: what is run next.
#include "module/call/run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "base/log.h"
#include "module/call/stored_rows.h"
#include "tensor/row_value.h"

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

// The padded dimensions that are known before the call.
std::optional<LearnedPadding> known_padding(const Digest128& form, const CallParts& parts) {
  if (parts.runs_whole) return refused_padding(kUnclearRows);
  auto learned = learned_padding(form);
  if (!parts.trusted_padding.has_value()) return learned;
  if (learned.has_value() && learned->is_refused()) return learned;
  LearnedPadding trusted;
  trusted.dims = *parts.trusted_padding;
  trusted.shown_share = 1;
  trusted.agreements = kEnoughAgreements;
  trusted.are_sizes_known = true;
  return trusted;
}

}  // namespace

at::IValue Step::input_of(const at::IValue& input) const {
  if (kind == Kind::kCheck) return check_input(input, check);
  return is_whole_input ? input : tensor::select_rows(input, rows);
}

Run::Run(Call&& call, cache::ContextPtr context)
    : parts_(std::move(call.parts_)),
      keys_(std::move(call.keys_)),
      input_(sampler_of(parts_, keys_.per())),
      context_(context != nullptr ? std::move(context) : parts_.context(keys_.per())),
      grad_is_unknown_(call.grad_is_unknown_),
      output_(empty_output()) {
  keys_.own();
  if (keys_.is_whole()) return;
  if (parts_.are_rows_trusted) proof_.verdict = RowProof::Verdict::kProven;
  const std::vector<std::int64_t>& lists = parts_.input.list_sizes;
  const auto rows = static_cast<std::int64_t>(keys_.rows());
  if (std::find(lists.begin(), lists.end(), rows) != lists.end()) parts_.runs_whole = true;
  if (!parts_.padding.has_value()) return;
  for (const std::int64_t length : parts_.padding->lengths) {
    std::string& signature = own_signatures_[length];
    if (signature.empty()) signature = tensor::signature_of_length(parts_.input.signature, length);
  }
  learned_ = known_padding(padded_form(), parts_);
}

tensor::RowsOutput Run::empty_output() const {
  return tensor::RowsOutput(keys_.rows(), is_output_pinned(parts_),
                            parts_.padding.has_value() ? &*parts_.padding : nullptr);
}

// A module may be cached with position_ids where it is not without them, under one context.
Digest128 Run::padded_form() const {
  Xxh3Hasher hasher;
  hasher.add(context_->digest.bytes());
  hasher.add(parts_.input.signature);
  return hasher.digest();
}

void Run::abandon() {
  if (observation_.has_value()) observation_->end();
  lead_.give_up();
}

void Run::start(Time started) {
  observation_.emplace();
  started_ = started;
}

const Step* Run::step() {
  if (has_step_) return &step_;
  step_ = {};
  if (!checks_.empty()) {
    step_.kind = Step::Kind::kCheck;
    step_.check = checks_.front();
  } else if (const auto trial = pending_ != nullptr ? pending_->trials.next() : std::nullopt) {
    step_.kind = Step::Kind::kTrial;
    step_.trial = *trial;
  } else if (!plan_rows()) {
    return nullptr;
  }
  has_step_ = true;
  return &step_;
}

// Returns false when all rows are there.
bool Run::plan_rows() {
  if (!is_begun_) look_up_first();
  if (!needs_whole_input_) {
    while (mine_.empty() && !awaited_.empty()) wait_for_others();
  }
  if (!needs_whole_input_ && mine_.empty()) {
    lead_.give_up();
    if (keys_.is_whole() || fit_together()) return false;
    needs_whole_input_ = true;
  }
  if (needs_whole_input_ || parts_.runs_whole || keys_.is_whole()) {
    plan_whole_input();
  } else {
    running_keys_ = std::exchange(mine_, {});
    running_.clear();
    for (const std::size_t i : running_keys_) running_.push_back(keys_.first_row(i));
  }
  take_samples();
  step_.rows = running_;
  step_.is_whole_input = keys_.is_whole() || is_all(running_);
  if (!parts_.scope.empty() && !generation_.has_value()) {
    generation_ =
        parts_.cache->begin_run(*parts_.configuration, parts_.scope, may_write(parts_.mode));
  }
  return true;
}

// Starts over: rows that were found so far are not used.
void Run::plan_whole_input() {
  needs_whole_input_ = false;
  is_whole_run_ = true;
  whole_.reset();
  mine_.clear();
  awaited_.clear();
  output_ = empty_output();
  running_.clear();
  if (!keys_.is_whole()) {
    running_.resize(keys_.rows());
    std::iota(running_.begin(), running_.end(), 0);
  }
  running_keys_ = first_numbers(keys_.size());
}

void Run::look_up_first() {
  is_begun_ = true;
  const bool has_scope = !parts_.scope.empty();
  const bool is_padding_refused = learned_.has_value() && learned_->is_refused();
  is_bypassed_ = has_scope && looks_up() && parts_.cache->bypasses(parts_.scope, keys_.rows());
  needs_whole_input_ = is_bypassed_ || grad_is_unknown_ || !has_scope || is_padding_refused;
  if (needs_whole_input_) return;
  compares_input_ = parts_.cache->compares_input(*parts_.configuration, parts_.scope, input_);
  needs_whole_input_ = has_conflicts_inside();
  if (needs_whole_input_) return;
  std::vector<std::size_t> all = first_numbers(keys_.size());
  if (looks_up()) return look_up(all, /*asks_server=*/true);
  if (keys_.is_whole() || !is_refused_by_row()) mine_ = std::move(all);
}

cache::Keys Run::keys_at(const std::vector<std::size_t>& places) const {
  const auto named = [&] {
    if (places.size() == 1) return cache::Keys(context_, keys_.key(places.front()));
    std::vector<std::string_view> texts;
    texts.reserve(places.size());
    for (const std::size_t place : places) texts.push_back(keys_.key(place));
    return cache::Keys(context_, texts);
  };
  cache::Keys keys = named();
  describe(keys, parts_, keys_);
  keys.input = compares_input_ ? &input_ : nullptr;
  keys.input_rows.reserve(places.size());
  for (const std::size_t place : places) {
    keys.input_rows.push_back(row_of(place));
    if (parts_.padding.has_value()) keys.signatures.push_back(signature_of(place));
  }
  return keys;
}

std::string_view Run::signature_of(std::size_t place) const {
  if (!parts_.padding.has_value()) return parts_.input.signature;
  return own_signatures_.at(parts_.padding->lengths[row_of(place)]);
}

void Run::look_up(const std::vector<std::size_t>& places, bool asks_server) {
  if (places.empty()) return;
  const cache::Keys keys = keys_at(places);
  cache::LookupOptions options = lookup_options(parts_, keys_);
  options.asks_server = asks_server;
  cache::Found found = parts_.cache->lookup(keys, options);
  add_found(places, keys, found);
}

void Run::take_found(cache::Keys keys, cache::Found& found) {
  is_begun_ = true;
  compares_input_ = keys.input != nullptr;
  keys.signature = parts_.input.signature;
  if (compares_input_) keys.input = &input_;
  add_found(first_numbers(keys_.size()), keys, found);
}

// Adds to mine_ what is missing and not run by others.
void Run::add_found(const std::vector<std::size_t>& places, const cache::Keys& keys,
                    cache::Found& found) {
  const bool may_write = cache::may_write(parts_.mode);
  const auto places_of = [&](const std::vector<std::size_t>& some) {
    std::vector<std::size_t> of_call;
    of_call.reserve(some.size());
    for (const std::size_t i : some) of_call.push_back(places[i]);
    return of_call;
  };
  lead_ = std::move(found.lead);
  if (keys_.is_whole()) {
    if (found.is_found(0)) found_value_ = handed_out(*found.entry(0), parts_.input.device);
  } else {
    add_stored_rows(parts_, {keys, found, may_write, keys_.rows()}, output_);
    note_row_marks();
  }
  for (const std::size_t place : places_of(found.sampled())) {
    sampled_.resize(keys_.size(), false);
    sampled_[place] = true;
    mine_.push_back(place);
  }
  for (const std::size_t place : places_of(found.conflicts())) {
    replaces_.resize(keys_.size(), false);
    replaces_[place] = true;
  }
  const std::vector<std::size_t> missing = found.missing();
  // Where all rows are found, what is stored says that it was proven.
  if (!missing.empty() && !needs_whole_input_ && !keys_.is_whole() && is_refused_by_row()) {
    lead_.kept_nothing();
    lead_.give_up();
    return;
  }
  const bool are_used = !needs_whole_input_ && (missing.empty() || !parts_.runs_whole);
  if (are_used) parts_.cache->count_hits(keys, found, may_write);
  if (missing.empty() || needs_whole_input_) return;
  // Rows that were found and cannot be used are missing, and no thread leads them.
  for (const std::size_t i : missing) {
    const bool is_awaited =
        std::find(found.awaited.begin(), found.awaited.end(), i) != found.awaited.end();
    (is_awaited ? awaited_ : mine_).push_back(places[i]);
  }
  std::sort(mine_.begin(), mine_.end());
}

// Keeps what stored rows say about all of them.
void Run::note_row_marks() {
  // Stored rows that are not marked as unproven were proven.
  const tensor::RowMarks* const marks = output_.row_marks();
  // A value that was taken for a constant may have proved to be none.
  if (marks != nullptr && !marks->constants.empty() && is_refused_by_row()) return;
  if (marks != nullptr && !proof_.is_known() && (!marks->are_unproven || keys_.rows() > 1)) {
    proof_.verdict = RowProof::Verdict::kProven;
    proof_.constants = marks->constants;
    proof_.holds_for_one = !marks->are_unproven_alone;
  }
  if (!parts_.padding.has_value() || learned_.has_value()) return;
  // Stored rows show the dimensions, but not whether the module respects its mask.
  if (auto dims = output_.padded_dims()) {
    learned_.emplace();
    learned_->dims = *std::move(dims);
  }
}

// Gives up its own leads first: two batches that each wait for a row of the other's would wait
// forever.
void Run::wait_for_others() {
  lead_.give_up();
  const std::vector<std::size_t> places = std::exchange(awaited_, {});
  cache::SingleFlight::Waited waited = parts_.cache->wait_for(keys_at(places));
  if (waited.look_again) {
    look_up(places, /*asks_server=*/false);  // results of runs of this process are near
  } else {
    lead_ = std::move(waited.lead);
    mine_ = places;
  }
}

// Returns whether all rows are there. Otherwise those that were found cannot be used.
bool Run::fit_together() {
  if (is_whole_run_) return true;
  if (output_.has_odd_stored_rows() || has_odd_padding()) {
    refuse_stored_rows();
    return false;
  }
  return !has_odd_constants();
}

// Returns whether stored rows were cut in other dimensions than the module's results are.
bool Run::has_odd_padding() const {
  if (!learned_.has_value() || learned_->is_refused() || learned_->dims.empty()) return false;
  const auto dims = output_.padded_dims();
  return dims.has_value() && *dims != learned_->dims;
}

// Returns whether two rows have one key but different inputs, such as two views of one image.
// Each then gets the result of its own run.
bool Run::has_conflicts_inside() {
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
  parts_.cache->note_conflict_in_batch(key_at(place), 0, conflicts);
  return true;
}

// A constant is stored with each row. Rows that meet here show whether it is one.
bool Run::has_odd_constants() {
  if (proof_.constants.empty() || whole_.has_value()) return false;
  repeat_rows();
  whole_ = output_.together(parts_.input.device);
  if (whole_.has_value()) return false;
  refuse_rows_apart(
      "an output that was equal in two batches, and was stored with each row, differs between "
      "rows; use one key for the whole input");
  note_proof();
  return true;
}

// The directory has rows of another kind than the module returned, so those are not the module's
// own.
void Run::refuse_stored_rows() {
  replaces_.assign(keys_.size(), true);
  parts_.cache->counters().add(parts_.scope, Counter::kCorrupt);
  log_once(
      LogLevel::kWarning, "other-kind:" + parts_.who(),
      "stored rows of " + parts_.who() +
          " have another dtype or number of dimensions than it gives: they are computed again, "
          "and replaced");
}

void Run::reject(const std::string& why_apart) {
  is_begun_ = true;
  has_step_ = false;
  if (!why_apart.empty()) return refuse_rows_apart(why_apart);
  needs_whole_input_ = true;
  found_value_.reset();
  replaces_.assign(keys_.size(), true);
  parts_.cache->counters().add(parts_.scope, Counter::kKeyConflicts,
                               static_cast<std::int64_t>(keys_.rows()));
  log_once(
      LogLevel::kWarning, "other-type:" + parts_.who(),
      (keys_.is_whole() ? "a stored result of " : "stored results of ") + parts_.who() +
          " have another type than the method declares: they are computed again, and replaced");
}

void Run::refuse_rows_apart(const std::string& why) {
  proof_ = RowProof::refuted(parts_.who() + ": " + why);
  needs_whole_input_ = true;
}

void Run::take_samples() {
  samples_.clear();
  if (!may_ever_store() || is_bypassed_) return;
  samples_.reserve(running_keys_.size());
  for (const std::size_t place : running_keys_) {
    samples_.push_back(cache::Cache::sample_to_store(*parts_.configuration, input_, row_of(place)));
  }
}

void Run::repeat_rows() {
  for (const auto& [row, same_as] : keys_.repeated()) output_.repeat(row, same_as);
}

std::optional<CallValue> Run::value(bool has_own_result) {
  if (keys_.is_whole()) {
    if (!has_run_) observe_end();  // else finish() did
    return std::exchange(found_value_, std::nullopt);
  }
  observe_end();
  // A check run or a trial may have overwritten the module's own result.
  const bool gives_own_result = has_own_result && ran_whole_input_ && !is_overwritten_ &&
                                (!parts_.padding.has_value() || (is_refused_ && !was_tried_));
  return gives_own_result ? std::nullopt : std::optional(rows_value());
}

CallValue Run::rows_value() {
  if (!is_whole_run_) {
    if (!whole_.has_value()) repeat_rows();
    // The value of a repeated key came from the memory of this call, which counts as a hit in
    // memory.
    if (!is_refused_ && !always_runs(parts_.mode) && !keys_.repeated().empty()) {
      parts_.cache->counters().add(parts_.scope, Counter::kHitsMemory,
                                   static_cast<std::int64_t>(keys_.repeated().size()));
    }
  }
  auto together = whole_.has_value() ? std::exchange(whole_, std::nullopt)
                                     : output_.together(parts_.input.device);
  if (together.has_value()) return call_value(*std::move(together));
  return output_.apart(parts_.input.device);
}

}  // namespace modcache::module
