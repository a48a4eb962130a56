// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: what becomes of the result of a run.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "module/call/padding_trials.h"
#include "module/call/rows_call.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

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

void RowsCall::finish_run(tensor::Flat result, const RunFacts& facts) {
  try {
    judge_run(std::move(result), facts);
  } catch (...) {
    abandon();  // whoever keeps the exception may keep this call, too
    throw;
  }
}

void RowsCall::judge_run(tensor::Flat result, const RunFacts& facts) {
  run_->end();
  const auto rows = static_cast<std::int64_t>(running_.size());
  if (!parts_.scope.empty()) look_up_proof();
  const bool has_rows = has_first_sizes(result, rows, proof_.constants);
  if (!is_whole_input(running_)) {
    const bool is_proven_alone = proof_.is_proven() && proof_.constants.empty();
    const bool may_be_cut =
        has_rows && (is_proven_alone || run_->may_be_kept(parts_, result, facts));
    if (!may_be_cut || !tensor::why_not_storable(result).empty()) {
      // Run the whole input instead, whose result need not be cut into rows.
      needs_whole_input_ = true;
      return;
    }
  }
  is_refused_ = true;
  if (proof_.is_refuted()) {
    refuse_rows(std::move(result), proof_.why_not);
    return;
  }
  const bool may_keep =
      !is_bypassed_ && run_->may_keep(parts_, *session_, result, facts, rows, outcome_);
  const bool is_padding_refused = learned_.has_value() && learned_->is_refused();
  // Trials of several padded rows also show that these are rows.
  const bool is_tried =
      parts_.padding.has_value() && rows > 1 && !(learned_.has_value() && learned_->is_settled());
  if (!may_keep) {
    lead_.kept_nothing();
    give_unstored(std::move(result));
  } else if (parts_.scope.empty()) {  // it is judged and counted, and not stored
    lead_.kept_nothing();
    count_run(rows);
    give_unstored(std::move(result));
  } else if (!proof_.is_known() && !is_padding_refused && !is_tried) {
    plan_check(std::move(result), facts);
  } else if (!has_rows) {
    const std::string why = why_not_rows(parts_.who(), result, rows);
    refuse_rows(std::move(result), why);
  } else {
    if (rows == 1 && !proof_.holds_for_one) {  // now it is seen
      proof_.holds_for_one = true;
      note_row_proof(*session_, *context_, proof_);
    }
    accept_rows(std::move(result), facts);
  }
}

// Gives a result back as it is, whether it has rows or not.
void RowsCall::give_unstored(tensor::Flat result) {
  if (is_whole_input(running_)) {
    whole_ = std::move(result);
  } else {
    output_.add_computed(running_, std::move(result));
  }
}

void RowsCall::plan_check(tensor::Flat result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  std::vector<at::Tensor> own;
  try {
    if (can_check_ && !(rows == 1 && proof_.was_tried_alone)) {
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
  unchecked_.emplace(Unchecked{std::move(result), facts, std::move(own)});
  if (checks_.empty()) end_check({});
}

std::vector<RowCheck> RowsCall::planned_checks() const {
  if (parts_.has_unseen_rows && running_.size() > 1 && keys_.repeated().empty()) {
    return {RowCheck{RowCheck::Kind::kAlone, running_.back(), 1}};
  }
  return plan_row_checks(parts_.input.tensors, running_, has_fixed_shape());
}

void RowsCall::finish_check(const std::optional<tensor::Flat>& checked) {
  try {
    const RowCheck check = checks_.front();
    checks_.erase(checks_.begin());
    has_failed_check_ = !checked.has_value();
    const RowProof proof = judged(checked, check);
    if (!proof.is_proven()) checks_.clear();
    if (checks_.empty()) end_check(proof);
  } catch (...) {
    unchecked_.reset();
    abandon();
    throw;
  }
}

// The model has its result, and a failure of the comparison must not take it away.
RowProof RowsCall::judged(const std::optional<tensor::Flat>& checked, const RowCheck& check) const {
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

void RowsCall::end_check(const RowProof& proof) {
  Unchecked unchecked = *std::exchange(unchecked_, std::nullopt);
  is_overwritten_ = !unchecked.own.empty() && !are_equal(unchecked.own, unchecked.result.tensors);
  proof_ = proof;
  proof_.was_tried_alone = was_checked_ && running_.size() == 1 && !proof_.is_known();
  if (proof_.is_known() || proof_.was_tried_alone) note_row_proof(*session_, *context_, proof_);
  if (proof_.is_refuted()) {
    refuse_rows(std::move(unchecked.result), proof_.why_not);
  } else if (proof_.is_proven()) {
    accept_rows(std::move(unchecked.result), unchecked.facts);
  } else {
    accept_unproven(std::move(unchecked.result), unchecked.facts);
  }
}

// Nothing was proven. The result of a batch of one serves batches of one.
void RowsCall::accept_unproven(tensor::Flat result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  const bool has_rows = has_first_sizes(result, rows, {});
  if (!is_whole_input(running_)) {  // keys that are repeated cannot share what may be no row
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
  if (shows_nothing && can_check_ && has_rows) {
    lead_.kept_nothing();
    count_run(rows);
    give_unstored(std::move(result));
    return;
  }
  std::string why = has_rows ? parts_.who() +
                                   ": nothing shows that its result consists of rows, since it "
                                   "could not be run on other rows"
                             : why_not_rows(parts_.who(), result, rows);
  if (has_rows && !can_check_) {
    why = parts_.who() +
          ": a recorded program cannot check that its result consists of rows; call "
          "modcache.lookup_or_run once, without recording it, with a batch of two rows or more";
  } else {
    proof_ = RowProof::refuted(why);
    note_row_proof(*session_, *context_, proof_, /*is_for_process=*/true);
  }
  refuse_rows(std::move(result), why);
}

void RowsCall::refuse_rows(tensor::Flat result, const std::string& why) {
  if (!proof_.is_refuted() && proof_.is_known()) {
    proof_ = RowProof::refuted(why);
    note_row_proof(*session_, *context_, proof_);
  }
  is_refused_ = true;
  lead_.kept_nothing();
  if (!is_whole_input(running_)) {
    needs_whole_input_ = true;
    return;
  }
  whole_ = std::move(result);
  if (!is_bypassed_) note_refusal("rows", why, running_.size());  // else it was counted
}

void RowsCall::accept_rows(tensor::Flat result, const RunFacts& facts) {
  const auto rows = static_cast<std::int64_t>(running_.size());
  output_.set_constants(proof_.constants);
  if (!proof_.constants.empty()) result = with_constants_by_row(result, rows, proof_.constants);
  if (parts_.padding.has_value()) {
    accept_padded(std::move(result), facts);
  } else {
    accept(std::move(result), facts);
  }
}

void RowsCall::accept(tensor::Flat result, const RunFacts& facts) {
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
      cutter.emplace(result, parts_.input.device, session_->settings().dtype,
                     tensor::RowMarks{proof_.constants, are_unproven_,
                                      proof_.is_proven() && !proof_.holds_for_one});
    }
    return padding == nullptr
               ? cutter->cut(place_in_run(k))
               : cutter->cut(place_in_run(k), learned_->dims, length(k), padding->true_part);
  };
  take(row_of_run, cut, facts);
  if (padding != nullptr) {
    auto with_padding = padded(result);
    is_refused_ = !with_padding.has_value();
    if (!is_refused_) result = *std::move(with_padding);
  }
  output_.add_computed(running_, std::move(result));
}

void RowsCall::accept_padded(tensor::Flat result, const RunFacts& facts) {
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
    pending_.emplace(Pending{std::move(trials), facts});
  } else if (trials.are_refused()) {
    pending_.emplace(Pending{std::move(trials), facts});
    end_trials();
  } else {
    accept(trials.take_result(), facts);
  }
}

void RowsCall::finish_trial(const std::optional<tensor::Flat>& tried) {
  try {
    pending_->trials.judge(tried);
    if (!pending_->trials.next().has_value()) end_trials();
  } catch (...) {
    pending_.reset();
    abandon();
    throw;
  }
}

void RowsCall::end_trials() {
  Pending pending = *std::exchange(pending_, std::nullopt);
  learned_ = pending.trials.take_learned();
  note_padding(padded_form(), *learned_);
  note_padding(context_->digest, *learned_);
  if (learned_->why_not.empty()) {
    accept(pending.trials.take_result(), pending.facts);
  } else {
    refuse_for_padding(pending.trials.take_result(), learned_->why_not);
  }
}

// Where a part of the rows was run, the whole input is run instead: results that are not cached
// need not fit to stored rows.
void RowsCall::refuse_for_padding(tensor::Flat result, const std::string& why) {
  is_padding_refused_ = true;
  if (!is_whole_input(running_)) {
    needs_whole_input_ = true;
    return;
  }
  lead_.kept_nothing();
  output_.add_computed(running_, std::move(result));
  note_refusal("padding", parts_.who() + ": " + why, running_.size());
}

// Returns the result with the padding's value after each row's true part. Nothing: it failed, and
// was counted.
std::optional<tensor::Flat> RowsCall::padded(const tensor::Flat& result) const {
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

void RowsCall::take(const RowOfRun& row_of_run, const CutRow& cut, const RunFacts& facts) {
  const bool stores = may_store();
  std::vector<bool> are_kept(running_keys_.size(), stores);
  const auto rows = static_cast<std::int64_t>(running_.size());
  // Asked once for all rows, and only where some are compared.
  if (!drawn_.empty() && has_other_weights(facts)) drawn_.clear();
  std::int64_t compared = 0;
  bool has_refused = false;
  for (std::size_t k = 0; k < running_keys_.size(); ++k) {
    const std::size_t place = running_keys_[k];
    const Comparison comparison = compare_row(k, row_of_run);
    if (comparison != Comparison::kNothingStored) ++compared;
    are_kept[k] = false;
    if (is_drawn(place) && comparison == Comparison::kSame) continue;
    are_kept[k] = stores && is_row_admitted(place);
    if (stores && !are_kept[k]) has_refused = true;
  }
  count_run(rows - compared);
  if (stores) {
    keep(cut, facts, are_kept, has_refused);
  } else {
    lead_.kept_nothing();
  }
}

Comparison RowsCall::compare_row(std::size_t k, const RowOfRun& row_of_run) {
  const std::size_t place = running_keys_[k];
  if (!is_verified() && !is_drawn(place)) return Comparison::kNothingStored;
  const Comparison comparison =
      compare(request(place), is_drawn(place), [&] { return row_of_run(k); });
  if (is_drawn(place) && comparison == Comparison::kDifferent) {
    replaces_.resize(keys_.distinct().size(), false);
    replaces_[place] = true;
  }
  return comparison;
}

// The model has its result, and a later failure of the cache must not take it away.
void RowsCall::keep(const CutRow& cut, const RunFacts& facts, const std::vector<bool>& are_kept,
                    bool has_refused) {
  try {
    const auto weights = judge_weights(parts_, facts, run_->run_us());
    if (weights.is_changed) return lead_.kept_nothing();
    const std::int64_t run_us = run_us_per_row();
    struct Kept {
      std::vector<std::string_view> keys;
      std::vector<cache::EntryPtr> entries;
    };
    Kept fresh;
    Kept replacing;
    for (std::size_t k = 0; k < running_keys_.size(); ++k) {
      const std::size_t place = running_keys_[k];
      if (!are_kept[k] || !may_keep_row(place) || is_stored_already(request(place))) continue;
      Kept& kept = always_runs(mode_) || replaces(place) ? replacing : fresh;
      kept.keys.push_back(keys_.distinct()[place]);
      kept.entries.push_back(
          entry_of(cut(k), signature_of(place), samples_[k], run_us, weights.confirmation));
    }
    const std::size_t stored =
        session_->store_all(context_, fresh.keys, fresh.entries) +
        session_->store_all(context_, replacing.keys, replacing.entries, /*replaces=*/true);
    if (stored == 0) {
      // Threads that began to wait just now run refused keys again, and then they are stored.
      if (!has_refused) lead_.kept_nothing();
      return;
    }
    outcome_.has_stored = true;
    lead_.stored();
  } catch (const std::exception& error) {
    report_failure(parts_, "kept", error);
  }
}

// A row is kept once it was seen that padding does not change it. One without a true part has
// nothing that a look-up could compare.
bool RowsCall::may_keep_row(std::size_t place) const {
  if (!parts_.padding.has_value()) return true;
  return learned_->agrees() && parts_.padding->lengths[row_of(place)] > 0;
}

}  // namespace modcache::module
