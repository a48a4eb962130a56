// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: what becomes of the result of a run.
#include <c10/util/Exception.h>

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

namespace modcache::module {
namespace {

// Returns all of them as one, which rules that know nothing of rows judge.
tensor::Flat joined(const std::vector<tensor::Flat>& apart) {
  tensor::Flat all = apart[0];
  for (std::size_t i = 1; i < apart.size(); ++i) {
    all.tensors.insert(all.tensors.end(), apart[i].tensors.begin(), apart[i].tensors.end());
    if (all.why_not_storable.empty()) all.why_not_storable = apart[i].why_not_storable;
  }
  return all;
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
  const bool is_storable = tensor::why_not_storable(result).empty();
  const std::string why_no_rows = is_storable ? tensor::why_no_rows(result, rows) : "";
  if ((!is_storable || !why_no_rows.empty()) && !is_whole_input(running_)) {
    // Run the whole input instead, whose result need not be cut into rows.
    needs_whole_input_ = true;
    return;
  }
  is_refused_ = true;
  const bool may_keep = run_->may_keep(parts_, *session_, result, facts, rows, outcome_);
  TORCH_CHECK(why_no_rows.empty(), "cache::lookup_or_run: ", parts_.who(), " was run on ", rows,
              " rows, one key each, and returned ", why_no_rows,
              "; every tensor of its result must have the rows as its first dimension. For one key "
              "for the whole input, pass the key as a str");
  if (!may_keep) {
    output_.add_computed(running_, std::move(result));
  } else if (parts_.padding.has_value()) {
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
      cutter.emplace(result, parts_.input.device, session_->settings().dtype);
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

void RowsCall::finish_run(std::vector<tensor::Flat> apart, const RunFacts& facts) {
  try {
    judge_apart(std::move(apart), facts);
  } catch (...) {
    abandon();
    throw;
  }
}

void RowsCall::judge_apart(std::vector<tensor::Flat> apart, const RunFacts& facts) {
  run_->end();
  const std::size_t count = running_.size();
  TORCH_CHECK(apart.size() == count && !parts_.padding.has_value(), "modcache: ", parts_.who(),
              " was run on ", count, " rows, and gave ", apart.size());
  for (const tensor::Flat& row : apart) {
    const std::string why = tensor::why_no_rows(row, 1);
    TORCH_CHECK(why.empty(), "modcache: a row of ", parts_.who(), " is ", why);
  }
  is_refused_ = true;
  const auto rows = static_cast<std::int64_t>(count);
  if (run_->may_keep(parts_, *session_, joined(apart), facts, rows, outcome_)) {
    is_refused_ = false;
    const auto row_of_run = [&](std::size_t k) {
      const tensor::Flat& kept = apart[place_in_run(k)];
      tensor::Flat row{kept.root, {}, {}};
      for (const at::Tensor& tensor : kept.tensors) row.tensors.push_back(tensor.select(0, 0));
      return row;
    };
    const auto cut = [&](std::size_t k) {
      const tensor::RowCutter cutter(apart[place_in_run(k)], parts_.input.device,
                                     session_->settings().dtype);
      return cutter.cut(0);
    };
    take(row_of_run, cut, facts);
  }
  for (std::size_t i = 0; i < count; ++i) {
    output_.add_computed({running_[i]}, std::move(apart[i]));
  }
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
  output_.add_computed(running_, std::move(result));
  outcome_.refused_for = "padding";
  outcome_.refusal = "the result of " + parts_.who() + " is not cached, since " + why;
  refuse(parts_, *session_, cache::Counter::kBypassedImpure,
         static_cast<std::int64_t>(running_.size()), "padding", outcome_.refusal);
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
  const auto rows = static_cast<std::int64_t>(running_.size());
  count_run(rows - (is_verified() ? compare(row_of_run) : 0));
  if (may_store()) keep(cut, facts);
}

// The model has its result, and a later failure of the cache must not take it away.
void RowsCall::keep(const CutRow& cut, const RunFacts& facts) {
  try {
    const auto weights = judge_weights(parts_, facts, run_->run_us());
    if (weights.is_changed) return;
    const std::int64_t run_us = run_->run_us() / static_cast<std::int64_t>(running_.size());
    struct Kept {
      std::vector<std::string_view> keys;
      std::vector<cache::EntryPtr> entries;
    };
    Kept fresh;
    Kept replacing;
    for (std::size_t k = 0; k < running_keys_.size(); ++k) {
      const std::size_t place = running_keys_[k];
      if (!may_keep_row(place) || is_stored_already(request(place))) continue;
      Kept& kept = always_runs(mode_) || replaces(place) ? replacing : fresh;
      kept.keys.push_back(keys_.distinct()[place]);
      kept.entries.push_back(
          entry_of(cut(k), signature_of(place), samples_[k], run_us, weights.confirmation));
    }
    const std::size_t stored =
        session_->store_all(context_, fresh.keys, fresh.entries) +
        session_->store_all(context_, replacing.keys, replacing.entries, /*replaces=*/true);
    if (stored == 0) return;
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

std::int64_t RowsCall::compare(const RowOfRun& row_of_run) {
  std::int64_t compared = 0;
  for (std::size_t k = 0; k < running_keys_.size(); ++k) {
    const auto fresh = [&] { return row_of_run(k); };
    if (compare_with_stored(parts_, *session_, request(running_keys_[k]), fresh)) ++compared;
  }
  return compared;
}

}  // namespace modcache::module
