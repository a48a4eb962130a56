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

using cache::Counter;

// Returns whether stored rows were cut in other dimensions than the module's results are.
bool RowsCall::has_odd_padding() const {
  const auto dims = output_.padded_dims();
  return learned_.has_value() && learned_->why_not.empty() && dims.has_value() &&
         *dims != learned_->dims;
}

void RowsCall::accept_padded(tensor::Flat result, const RunFacts& facts) {
  if (learned_.has_value() && !learned_->why_not.empty()) {
    refuse_for_padding(std::move(result), learned_->why_not);
    return;
  }
  if (learned_.has_value() && !has_padded_dims(result, learned_->dims, parts_.padding->longest)) {
    learned_.reset();
  }
  const auto trial = plan_trial(*parts_.padding, running_, learned_);
  if (trial.has_value()) {
    pending_.emplace(Pending{std::move(result), facts, *trial});
  } else {
    accept(std::move(result), facts);
  }
}

void RowsCall::finish_trial(const std::optional<tensor::Flat>& tried) {
  try {
    if (!tried.has_value()) {
      const auto next = plan_trial(*parts_.padding, running_, learned_, ++pending_->attempt);
      if (next.has_value()) {
        pending_->trial = *next;
        return;
      }
    }
    Pending pending = *std::exchange(pending_, std::nullopt);
    LearnedPadding found = judge_trial(pending, tried);
    note_padding(context_->digest, found);
    if (!found.why_not.empty()) {
      refuse_for_padding(std::move(pending.result), found.why_not);
      return;
    }
    learned_ = std::move(found);
    accept(std::move(pending.result), pending.facts);
  } catch (...) {
    pending_.reset();
    abandon();
    throw;
  }
}

// The model has its result, and a failure of the comparison must not take it away.
LearnedPadding RowsCall::judge_trial(const Pending& pending,
                                     const std::optional<tensor::Flat>& tried) const {
  LearnedPadding failed;
  if (!tried.has_value()) {
    failed.why_not = "it cannot be run on a row of another length";
    return failed;
  }
  try {
    const auto place =
        std::find(running_.begin(), running_.end(), pending.trial.row) - running_.begin();
    return module::judge_trial(pending.result, place, *tried, pending.trial, *parts_.padding,
                               padding_tolerance(pending.result));
  } catch (const std::exception& error) {
    report_failure(parts_, "compared with a row of another length", error);
    failed.why_not = "it could not be compared with a row of another length";
    return failed;
  }
}

void RowsCall::refuse_for_padding(tensor::Flat result, const std::string& why) {
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
