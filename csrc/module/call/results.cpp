// SPDX-License-Identifier: Apache-2.0
//
// Run: what becomes of the result of a step.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "module/call/padding_trials.h"
#include "module/call/run.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

bool are_equal(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  try {
    const tensor::OrdinaryTensors ordinary;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const at::Tensor one = tensor::as_operable(some[i].detach());
      if (!at::equal(one, tensor::as_operable(others[i]))) return false;
    }
    return true;
  } catch (const std::exception&) {  // the copy is then given
    return false;
  }
}

}  // namespace

void Run::finish(std::optional<tensor::Flat> result, const RunFacts& facts) {
  has_step_ = false;
  try {
    switch (step_.kind) {
      case Step::Kind::kRun: judge_run(*std::move(result), facts); break;
      case Step::Kind::kCheck: finish_check(result); break;
      case Step::Kind::kTrial: finish_trial(result); break;
    }
  } catch (...) {
    unchecked_.reset();
    pending_.reset();
    abandon();  // whoever keeps the exception may keep this run, too
    throw;
  }
  if (!keys_.is_whole()) return;
  // Nothing follows, and the caller may keep this run for long.
  lead_.give_up();
  observe_end();
}

void Run::judge_run(tensor::Flat&& result, const RunFacts& facts) {
  const auto run_time = std::chrono::steady_clock::now() - started_;
  run_us_ = std::chrono::duration_cast<std::chrono::microseconds>(run_time).count();
  observation_->end();
  has_run_ = true;
  ran_whole_input_ = step_.is_whole_input;
  is_refused_ = true;
  const auto refusal = refusal_of(parts_, result, facts, *observation_);
  if (!keys_.is_whole() && !may_use_rows(result, refusal.has_value())) {
    needs_whole_input_ = true;
    return;
  }
  if (proof_.is_refuted()) return refuse_rows(std::move(result), proof_.why_not);
  const auto rows = static_cast<std::int64_t>(keys_.is_whole() ? 1 : running_.size());
  bool may_store = !is_bypassed_ && !refusal.has_value();
  if (refusal.has_value() && !is_bypassed_) {
    outcome_ = {false, refusal->cause, refusal->message};
    refuse(parts_, refusal->counter, rows, refusal->cause, refusal->message);
  } else {
    outcome_ = {};
  }
  if (!may_store || parts_.scope.empty()) {
    lead_.kept_nothing();
    if (may_store) count_run(rows);  // it is judged and counted, and not stored
    if (!keys_.is_whole()) give_unstored(std::move(result));
  } else if (keys_.is_whole()) {
    take([&](std::size_t) { return result; },
         [&](std::size_t) -> std::shared_ptr<const cache::Value> {
           return tensor::WholeValue::copy_of(result, parts_.input.device, parts_.settings().dtype);
         },
         facts);
  } else {
    judge_rows(std::move(result), facts);
  }
}

// Returns false where a part of the rows was run, and its result cannot be cut into rows: then the
// whole input is run, whose result need not be.
bool Run::may_use_rows(const tensor::Flat& result, bool is_refused) {
  if (!parts_.scope.empty()) look_up_proof();
  if (is_all(running_)) return true;
  const auto rows = static_cast<std::int64_t>(running_.size());
  const bool is_proven_alone = proof_.is_proven() && proof_.constants.empty();
  return has_first_sizes(result, rows, proof_.constants) && (is_proven_alone || !is_refused) &&
         tensor::why_not_storable(result).empty();
}

// A result of rows that no rule of results forbids to store.
void Run::judge_rows(tensor::Flat&& result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  const bool is_padding_refused = learned_.has_value() && learned_->is_refused();
  // Trials of several padded rows also show that these are rows.
  const bool is_tried =
      parts_.padding.has_value() && rows > 1 && !(learned_.has_value() && learned_->is_settled());
  if (!proof_.is_known() && !is_padding_refused && !is_tried) {
    plan_check(std::move(result), facts);
  } else if (!has_first_sizes(result, rows, proof_.constants)) {
    const std::string why = why_not_rows(parts_.who(), result, rows);
    refuse_rows(std::move(result), why);
  } else {
    if (rows == 1 && !proof_.holds_for_one) {  // now it is seen
      proof_.holds_for_one = true;
      note_proof();
    }
    accept_rows(std::move(result), facts);
  }
}

// Gives a result back as it is, whether it has rows or not.
void Run::give_unstored(tensor::Flat&& result) {
  if (is_all(running_)) {
    whole_ = std::move(result);
  } else {
    output_.add_computed(running_, std::move(result));
  }
}

void Run::plan_check(tensor::Flat&& result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  std::vector<at::Tensor> own;
  try {
    if (parts_.can_check && !(rows == 1 && proof_.was_tried_alone)) {
      checks_ = planned_checks();
    }
    // A check run may overwrite the memory of the result.
    if (!checks_.empty()) {
      was_checked_ = true;
      own = result.tensors;
      for (at::Tensor& tensor : result.tensors) tensor = tensor::copy_of(tensor.detach());
    }
  } catch (const std::exception& error) {
    report_failure(parts_, "checked", error);
    checks_.clear();
  }
  if (checks_.empty()) return end_check({}, std::move(result), facts, own);
  unchecked_ = std::make_unique<Unchecked>(Unchecked{std::move(result), facts, std::move(own)});
}

std::vector<RowCheck> Run::planned_checks() const {
  if (parts_.has_unseen_rows && running_.size() > 1 && keys_.repeated().empty()) {
    return {RowCheck{RowCheck::Kind::kAlone, running_.back(), 1}};
  }
  return plan_row_checks(parts_.input.tensors, running_, has_fixed_shape());
}

void Run::finish_check(const std::optional<tensor::Flat>& checked) {
  const RowCheck check = checks_.front();
  checks_.erase(checks_.begin());
  has_failed_check_ = !checked.has_value();
  const RowProof proof = judged(checked, check);
  if (!proof.is_proven()) checks_.clear();
  if (!checks_.empty()) return;
  const auto unchecked = std::move(unchecked_);
  end_check(proof, std::move(unchecked->result), unchecked->facts, unchecked->own);
}

// The model has its result, and a failure of the comparison must not take it away.
RowProof Run::judged(const std::optional<tensor::Flat>& checked, const RowCheck& check) const {
  if (!checked.has_value() || !tensor::why_not_storable(*checked).empty()) return {};
  try {
    const auto rows = static_cast<std::int64_t>(running_.size());
    const tensor::Tolerance tolerance = row_tolerance(parts_, unchecked_->result);
    return judge_row_check({parts_.who(), unchecked_->result, rows, tolerance, parts_.is_ragged},
                           *checked, check);
  } catch (const std::exception& error) {
    report_failure(parts_, "compared with a check run", error);
    return {};
  }
}

void Run::end_check(const RowProof& proof, tensor::Flat&& result, const RunFacts& facts,
                    const std::vector<at::Tensor>& own) {
  is_overwritten_ = !own.empty() && !are_equal(own, result.tensors);
  proof_ = proof;
  proof_.was_tried_alone = was_checked_ && running_.size() == 1 && !proof_.is_known();
  if (proof_.is_known() || proof_.was_tried_alone) note_proof();
  if (proof_.is_refuted()) {
    refuse_rows(std::move(result), proof_.why_not);
  } else if (proof_.is_proven()) {
    accept_rows(std::move(result), facts);
  } else {
    accept_unproven(std::move(result), facts);
  }
}

// Nothing was proven. The result of a batch of one serves batches of one.
void Run::accept_unproven(tensor::Flat&& result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  const bool has_rows = has_first_sizes(result, rows, {});
  if (!is_all(running_)) {  // keys that are repeated cannot share what may be no row
    needs_whole_input_ = true;
    return;
  }
  if (rows == 1 && has_rows) {
    are_unproven_ = true;
    accept_rows(std::move(result), facts);
    return;
  }
  // Its rows are equal, and show nothing.
  const bool shows_nothing = !was_checked_ || !(has_failed_check_ || has_fixed_shape());
  if (shows_nothing && parts_.can_check && has_rows) {
    lead_.kept_nothing();
    count_run(rows);
    give_unstored(std::move(result));
    return;
  }
  std::string why = has_rows ? parts_.who() +
                                   ": nothing shows that its result consists of rows, since it "
                                   "could not be run on other rows"
                             : why_not_rows(parts_.who(), result, rows);
  if (has_rows && !parts_.can_check) {
    why = parts_.who() +
          ": a recorded program cannot check that its result consists of rows; call "
          "modcache.lookup_or_run once, without recording it, with a batch of two rows or more";
  } else {
    proof_ = RowProof::refuted(why);
    note_proof(/*is_for_process=*/true);
  }
  refuse_rows(std::move(result), why);
}

void Run::refuse_rows(tensor::Flat&& result, const std::string& why) {
  if (!proof_.is_refuted() && proof_.is_known()) {
    proof_ = RowProof::refuted(why);
    note_proof();
  }
  is_refused_ = true;
  lead_.kept_nothing();
  if (!is_all(running_)) {
    needs_whole_input_ = true;
    return;
  }
  whole_ = std::move(result);
  if (!is_bypassed_) count_refusal("rows", why, running_.size());  // else it was counted
}

void Run::accept_rows(tensor::Flat&& result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  output_.set_constants(proof_.constants);
  if (!proof_.constants.empty()) result = with_constants_by_row(result, rows, proof_.constants);
  if (parts_.padding.has_value()) {
    accept_padded(std::move(result), facts);
  } else {
    accept(std::move(result), facts);
  }
}

void Run::accept(tensor::Flat&& result, const RunFacts& facts) {
  is_refused_ = false;
  const tensor::RowPadding* const padding = parts_.padding.has_value() ? &*parts_.padding : nullptr;
  const auto length = [&](std::size_t k) { return padding->lengths[row_of(running_keys_[k])]; };
  const auto row_of_run = [&](std::size_t k) {
    tensor::Flat row{result.root, {}, {}};
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      const auto whole = result.tensors[i].select(0, static_cast<std::int64_t>(place_in_run(k)));
      row.tensors.push_back(
          padding == nullptr
              ? whole
              : tensor::cut_to_length(whole, learned_->dims[i], length(k), padding->true_part));
    }
    return row;
  };
  std::optional<tensor::RowCutter> cutter;
  const auto cut = [&](std::size_t k) {
    if (!cutter.has_value()) {
      cutter.emplace(result, parts_.input.device, parts_.settings().dtype,
                     tensor::RowMarks{proof_.constants, are_unproven_,
                                      proof_.is_proven() && !proof_.holds_for_one});
    }
    return padding == nullptr
               ? cutter->cut(place_in_run(k))
               : cutter->cut(place_in_run(k), learned_->dims, length(k), padding->true_part);
  };
  take(std::cref(row_of_run), std::cref(cut), facts);
  if (padding != nullptr) {
    auto with_padding = padded(result);
    is_refused_ = !with_padding.has_value();
    if (!is_refused_) result = *std::move(with_padding);
  }
  output_.add_computed(running_, std::move(result));
}

void Run::accept_padded(tensor::Flat&& result, const RunFacts& facts) {
  if (learned_.has_value() && (is_padding_refused_ || learned_->is_refused())) {
    refuse_for_padding(std::move(result), learned_->why_not);
    return;
  }
  if (learned_.has_value() && !learned_->fits(result, parts_.padding->longest)) {
    learned_.reset();
  }
  PaddingTrials trials(parts_, std::move(result), running_, learned_);
  if (trials.next().has_value()) {
    was_tried_ = true;
    pending_ = std::make_unique<Pending>(Pending{std::move(trials), facts});
  } else if (trials.are_refused()) {
    pending_ = std::make_unique<Pending>(Pending{std::move(trials), facts});
    end_trials();
  } else {
    accept(trials.take_result(), facts);
  }
}

void Run::finish_trial(const std::optional<tensor::Flat>& tried) {
  pending_->trials.judge(tried);
  if (!pending_->trials.next().has_value()) end_trials();
}

void Run::end_trials() {
  const auto pending = std::move(pending_);
  learned_ = pending->trials.take_learned();
  note_padding(padded_form(), *learned_);
  note_padding(context_->digest, *learned_);
  if (learned_->why_not.empty()) {
    accept(pending->trials.take_result(), pending->facts);
  } else {
    refuse_for_padding(pending->trials.take_result(), learned_->why_not);
  }
}

// Where a part of the rows was run, the whole input is run instead: results that are not cached
// need not fit to stored rows.
void Run::refuse_for_padding(tensor::Flat&& result, const std::string& why) {
  is_padding_refused_ = true;
  if (!is_all(running_)) {
    needs_whole_input_ = true;
    return;
  }
  lead_.kept_nothing();
  output_.add_computed(running_, std::move(result));
  count_refusal("padding", parts_.who() + ": " + why, running_.size());
}

// Returns the result with the padding's value after each row's true part. Nothing: it failed, and
// was counted.
std::optional<tensor::Flat> Run::padded(const tensor::Flat& result) const {
  try {
    tensor::Flat padded{result.root, {}, {}};
    for (std::size_t i = 0; i < result.tensors.size(); ++i) {
      padded.tensors.push_back(
          with_padding(result.tensors[i], learned_->dims[i], *parts_.padding, running_));
    }
    return padded;
  } catch (const std::exception& error) {
    report_failure(parts_, "padded", error);
    return std::nullopt;
  }
}

void Run::take(const RowOfRun& row_of_run, const CutRow& cut, const RunFacts& facts) {
  const bool stores = may_store();
  std::vector<bool> are_stored(running_keys_.size(), false);
  // Asked once for all rows, and only where some are compared.
  if (!sampled_.empty() && has_other_weights(facts)) sampled_.clear();
  std::int64_t compared = 0;
  bool has_refused = false;
  for (std::size_t k = 0; k < running_keys_.size(); ++k) {
    const std::size_t place = running_keys_[k];
    const Comparison comparison = compare(k, row_of_run);
    if (comparison != Comparison::kNothingStored) ++compared;
    if (is_sampled(place) && comparison == Comparison::kSame) continue;
    are_stored[k] = stores && is_admitted(place);
    if (stores && !are_stored[k]) has_refused = true;
  }
  const std::size_t rows = keys_.is_whole() ? 1 : running_.size();
  count_run(static_cast<std::int64_t>(rows) - compared);
  if (stores) {
    store(cut, facts, are_stored, has_refused);
  } else {
    lead_.kept_nothing();
  }
}

// Compares row k of the run with what is stored, in mode `verify` and for a sampled hit.
Comparison Run::compare(std::size_t k, const RowOfRun& row_of_run) {
  const std::size_t place = running_keys_[k];
  if (!is_verified() && !is_sampled(place)) return Comparison::kNothingStored;
  std::string difference;
  const cache::Keys key = key_at(place);
  const Comparison comparison = compare_with_stored(
      parts_, key, 0, [&] { return row_of_run(k); }, &difference);
  if (!is_sampled(place) || comparison == Comparison::kNothingStored) return comparison;
  parts_.cache->counters().add(parts_.scope, cache::Counter::kVerified);
  parts_.cache->note_compared(key, 0, parts_.who(), difference, may_write(parts_.mode));
  if (comparison == Comparison::kDifferent) {
    replaces_.resize(keys_.size(), false);
    replaces_[place] = true;
  }
  return comparison;
}

bool Run::is_admitted(std::size_t place) const {
  if (parts_.configuration->seen == nullptr || always_runs(parts_.mode) || replaces(place)) {
    return true;
  }
  return cache::Cache::admits(key_at(place), 0, lead_);
}

// Returns whether the run was only needed to learn whether the result has a graph. Then its result
// does not replace a stored value.
bool Run::is_stored_already(std::size_t place) const {
  return grad_is_unknown_ && !always_runs(parts_.mode) &&
         parts_.cache->inspect(key_at(place), /*asks_server=*/false).front().has_value();
}

// The model has its result, and a later failure of the cache must not take it away.
void Run::store(const CutRow& cut, const RunFacts& facts, const std::vector<bool>& are_stored,
                bool has_refused) {
  try {
    if (!are_weights_unchanged(parts_, facts, run_us_)) return lead_.kept_nothing();
    const std::int64_t rows = keys_.is_whole() ? 1 : static_cast<std::int64_t>(running_.size());
    struct Stored {
      std::vector<std::size_t> places;
      std::vector<cache::EntryPtr> entries;
    };
    std::array<Stored, 2> stored;  // those that replace others are the second
    for (std::size_t k = 0; k < running_keys_.size(); ++k) {
      const std::size_t place = running_keys_[k];
      if (!are_stored[k] || !may_store_row(place) || is_stored_already(place)) continue;
      Stored& of_kind = stored[always_runs(parts_.mode) || replaces(place) ? 1 : 0];
      of_kind.places.push_back(place);
      of_kind.entries.push_back(std::make_shared<const cache::Entry>(cache::Entry{
          cut(k), std::string(signature_of(place)), run_us_ / rows, now_us(), samples_[k]}));
    }
    std::size_t num_stored = 0;
    for (const bool replaces : {false, true}) {
      const Stored& of_kind = stored[replaces ? 1 : 0];
      if (of_kind.places.empty()) continue;
      num_stored +=
          parts_.cache->store(keys_at(of_kind.places), of_kind.entries, {replaces, &*generation_});
    }
    if (num_stored == 0) {
      // Threads that began to wait just now run refused keys again, and then they are stored.
      if (!has_refused) lead_.kept_nothing();
      return;
    }
    outcome_.has_stored = true;
    lead_.stored();
  } catch (const std::exception& error) {
    report_failure(parts_, "stored", error);
  }
}

// A row is stored once it was seen that padding does not change it. One without a valid part has
// nothing that a lookup could compare.
bool Run::may_store_row(std::size_t place) const {
  if (!parts_.padding.has_value()) return true;
  return learned_->agrees() && parts_.padding->lengths[row_of(place)] > 0;
}

// Counts a run that no rule forbids to store, and remembers that its result has no graph.
void Run::count_run(std::int64_t misses) {
  if (grad_is_unknown_) note_graph_free(parts_);
  parts_.cache->note_run(parts_.scope, run_us_);
  auto& counters = parts_.cache->counters();
  using cache::Stats;
  const std::array<Stats::Addition, 2> additions{Stats::addition(cache::Counter::kRunUs, run_us_),
                                                 Stats::addition(cache::Counter::kMisses, misses)};
  counters.add(*context_, additions, may_write(parts_.mode));
  if (misses == 0) return;
  was_miss_ = true;
  counters.latencies().run.observe(std::chrono::microseconds(run_us_));
}

// The caller has its value: adds the time of the call to the histograms.
void Run::observe_end() const {
  if (has_run_ && !was_miss_) return;
  auto& latencies = parts_.cache->counters().latencies();
  (has_run_ ? latencies.miss : latencies.hit).observe(std::chrono::steady_clock::now() - begun_at_);
}

// Returns whether the weights are others by now than those of the scope, so that the result says
// nothing about what is stored.
bool Run::has_other_weights(const RunFacts& facts) const {
  try {
    return !are_weights_unchanged(parts_, facts, run_us_);
  } catch (const std::exception& error) {
    report_failure(parts_, "verified", error);
    return true;
  }
}

// Returns whether the results of this context are known to be no rows. The call then is bypassed,
// and was counted.
bool Run::is_refused_by_row() {
  look_up_proof();
  if (!proof_.is_refuted()) return false;
  is_bypassed_ = true;
  needs_whole_input_ = true;
  count_refusal("rows", proof_.why_not, keys_.rows());
  return true;
}

void Run::count_refusal(const char* cause, const std::string& why, std::size_t rows) {
  outcome_.refused_for = cause;
  outcome_.refusal = "not caching " + why;
  refuse(parts_, cache::Counter::kBypassedRows, static_cast<std::int64_t>(rows), cause,
         outcome_.refusal);
}

// After a clear the name may be that of another module, of which the run shows nothing.
void Run::note_proof(bool is_for_process) {
  const bool is_outdated =
      generation_.has_value() && !running_keys_.empty() &&
      parts_.cache->was_cleared(key_at(running_keys_.front()), 0, *generation_);
  if (!is_outdated) note_row_proof(parts_, *context_, proof_, is_for_process);
}

void Run::look_up_proof() {
  if (proof_.is_known() || std::exchange(has_looked_up_proof_, true)) return;
  proof_ = row_proof_of(parts_, *context_);
}

}  // namespace modcache::module
