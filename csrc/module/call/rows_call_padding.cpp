// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: rows that have lengths of their own.
#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/hash.h"
#include "module/call/learned_padding.h"
#include "module/call/rows_call.h"
#include "tensor/difference.h"

namespace modcache::module {

using cache::Counter;

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
  const auto dims = output_.padded_dims();
  return learned_.has_value() && !learned_->is_refused() && !learned_->dims.empty() &&
         dims.has_value() && *dims != learned_->dims;
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

void RowsCall::accept_padded(tensor::Flat result, const RunFacts& facts) {
  if (learned_.has_value() && (is_padding_refused_ || learned_->is_refused())) {
    refuse_for_padding(std::move(result), learned_->why_not);
    return;
  }
  if (learned_.has_value() && !has_padded_dims(result, learned_->dims, parts_.padding->longest)) {
    learned_.reset();
  }
  std::vector<PaddingTrial> trials =
      plan_trials(*parts_.padding, running_, padded_beside_mask(), learned_);
  if (trials.empty()) {
    accept(std::move(result), facts);
    return;
  }
  LearnedPadding known = learned_.value_or(LearnedPadding());
  known.why_not.clear();
  pending_.emplace(Pending{std::move(result), facts, std::move(trials), 0, std::move(known)});
}

// Returns the padded tensors of the input, by their order among these, without the mask itself.
std::vector<unsigned> RowsCall::padded_beside_mask() const {
  constexpr unsigned kMost = 64;
  std::vector<unsigned> numbers;
  unsigned number = 0;
  for (std::size_t i = 0; i < parts_.input.tensors.size(); ++i) {
    if (parts_.input.padded_dims[i] == 0) continue;
    const bool is_mask =
        parts_.padding->mask.defined() && parts_.input.tensors[i].is_same(parts_.padding->mask);
    if (!is_mask && number < kMost) numbers.push_back(number);
    ++number;
  }
  return numbers;
}

void RowsCall::finish_trial(const std::optional<tensor::Flat>& tried) {
  try {
    judge_trial(tried);
    if (pending_->learned.why_not.empty() && pending_->next < pending_->trials.size()) return;
    end_trials();
  } catch (...) {
    pending_.reset();
    abandon();
    throw;
  }
}

// The model has its result, and a failure of the comparison must not take it away.
void RowsCall::judge_trial(const std::optional<tensor::Flat>& tried) {
  using Kind = PaddingTrial::Kind;
  Pending& pending = *pending_;
  PaddingTrial trial = pending.trials[pending.next++];
  const auto is_same_kind = [&] {
    return pending.next < pending.trials.size() && pending.trials[pending.next].kind == trial.kind;
  };
  if (trial.kind == Kind::kSome || trial.kind == Kind::kUnused) {
    judge_trial_of_some(trial, tried);
    return;
  }
  if (!tried.has_value() && trial.kind == Kind::kCut) return;  // end_trials() sees that
  if (!tried.has_value()) {
    if (!is_same_kind()) pending.learned.why_not = "it cannot be run on a row of another length";
    return;
  }
  try {
    trial.place = std::find(running_.begin(), running_.end(), trial.row) - running_.begin();
    module::judge_trial(pending.result, *tried, trial, *parts_.padding,
                        padding_tolerance(pending.result), pending.learned);
    pending.was_cut = pending.was_cut || trial.kind == Kind::kCut;
  } catch (const std::exception& error) {
    report_failure(parts_, "compared with a row of another length", error);
    pending.learned.why_not = "it could not be compared with a row of another length";
  }
  while (is_same_kind()) ++pending.next;
}

// These are the last trials. Where the module takes tensors of several lengths, those that it does
// not use are looked for, and the others are tried once more.
void RowsCall::judge_trial_of_some(const PaddingTrial& trial,
                                   const std::optional<tensor::Flat>& tried) {
  Pending& pending = *pending_;
  const auto plan = [&](const std::vector<PaddingTrial>& trials) {
    pending.trials.resize(pending.next);
    pending.trials.insert(pending.trials.end(), trials.begin(), trials.end());
  };
  if (trial.kind == PaddingTrial::Kind::kSome) {
    if (!tried.has_value()) return;
    if (pending.used.has_value()) {
      pending.learned.why_not =
          "it takes tensors of several lengths, which were padded to one by chance; pad those that "
          "the mask is not for to another, or name them in ignore= if they change no result";
      return;
    }
    pending.used = 0;
    plan(plan_trials_of_use(trial, padded_beside_mask()));
  } else if (trial.altered == PaddingTrial::kNone) {
    pending.unaltered = tried;
  } else {
    if (!is_as_unaltered(tried)) *pending.used |= trial.kept;
    if (pending.next < pending.trials.size()) return;
    plan(plan_trials_of_some(trial, padded_beside_mask(), *pending.used));
  }
}

bool RowsCall::is_as_unaltered(const std::optional<tensor::Flat>& tried) const {
  if (!tried.has_value() || !pending_->unaltered.has_value()) return false;
  try {
    return tensor::difference(*tried, *pending_->unaltered, {0, 0}).empty();
  } catch (const std::exception& error) {
    report_failure(parts_, "compared with a row of another length", error);
    return false;
  }
}

void RowsCall::end_trials() {
  Pending pending = *std::exchange(pending_, std::nullopt);
  LearnedPadding& found = pending.learned;
  // A size that stays may be that of the row, where no part of a row was run.
  const bool may_follow_rows =
      !found.are_sizes_known && !pending.was_cut &&
      std::find(found.dims.begin(), found.dims.end(), 0) != found.dims.end();
  if (found.why_not.empty() && may_follow_rows) {
    found.why_not = "it cannot be seen whether its result is as long as its row";
  }
  if (found.why_not.empty()) {
    found.are_sizes_known = true;
    found.failures = 0;
    found.signature = parts_.input.signature;
  } else if (!found.is_refused()) {
    ++found.failures;
  }
  note_padding(padded_form(), found);
  note_padding(context_->digest, found);
  learned_ = found;
  if (found.why_not.empty()) {
    accept(std::move(pending.result), pending.facts);
  } else {
    refuse_for_padding(std::move(pending.result), found.why_not);
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
  refuse(parts_, *session_, Counter::kBypassedImpure, static_cast<std::int64_t>(running_.size()),
         "padding", outcome_.refusal);
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

// Numbers of few bits, and sums of them, depend on the batch that they are computed in.
double RowsCall::padding_tolerance(const tensor::Flat& result) const {
  constexpr double kTolerance = 1e-3;
  constexpr double kToleranceOfFewBits = 5e-2;
  const bool has_few_bits =
      !parts_.arithmetic_state().empty() ||
      std::any_of(result.tensors.begin(), result.tensors.end(), [](const at::Tensor& tensor) {
        return tensor.is_floating_point() && tensor.element_size() < 4;
      });
  return has_few_bits ? kToleranceOfFewBits : kTolerance;
}

}  // namespace modcache::module
