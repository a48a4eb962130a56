// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: rows that have lengths of their own.
#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "module/call/learned_padding.h"
#include "module/call/rows_call.h"

namespace modcache::module {

// Returns whether stored rows were cut in other dimensions than the module's results are.
bool RowsCall::has_odd_padding() const {
  const auto dims = output_.padded_dims();
  return learned_.has_value() && dims.has_value() && *dims != learned_->dims;
}

void RowsCall::accept_padded(tensor::Flat result, const RunFacts& facts) {
  if (learned_.has_value() && !has_padded_dims(result, learned_->dims, parts_.padding->longest)) {
    learned_.reset();
  }
  auto trial = plan_trial(*parts_.padding, running_, learned_);
  if (!trial.has_value()) {
    accept(std::move(result), facts);
    return;
  }
  pending_.emplace(Pending{std::move(result), facts, *trial});
}

void RowsCall::finish_trial(const std::optional<tensor::Flat>& tried) {
  try {
    judge_trial(tried);
  } catch (...) {
    abandon();
    throw;
  }
}

void RowsCall::judge_trial(const std::optional<tensor::Flat>& tried) {
  Pending pending = *std::exchange(pending_, std::nullopt);
  const auto place =
      std::find(running_.begin(), running_.end(), pending.trial.row) - running_.begin();
  TrialOutcome outcome;
  if (tried.has_value()) {
    outcome = module::judge_trial(pending.result, place, *tried, pending.trial, *parts_.padding,
                                  padding_tolerance(pending.result));
  } else {
    outcome.why_not = "it cannot be run on a row of another length";
  }
  if (!outcome.why_not.empty()) {
    output_.add_computed(running_, std::move(pending.result));
    refuse_for_padding(outcome.why_not);
    return;
  }
  learned_ = outcome.learned;
  note_padding(context_->digest, outcome.learned);
  accept(std::move(pending.result), pending.facts);
}

bool RowsCall::refuse_for_padding(const std::string& why) {
  outcome_.refused_for = "padding";
  outcome_.refusal = "the result of " + parts_.who() + " is not cached, since " + why;
  return refuse(parts_, *session_, Counter::kBypassedImpure,
                static_cast<std::int64_t>(running_.size()), "padding", outcome_.refusal);
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
