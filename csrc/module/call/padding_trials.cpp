// SPDX-License-Identifier: Apache-2.0
#include "module/call/padding_trials.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "tensor/difference.h"
#include "tensor/storable.h"

namespace modcache::module {
namespace {

// Returns the padded tensors of the input, by their order among these, without the mask itself.
std::vector<unsigned> padded_beside_mask(const CallParts& parts) {
  constexpr unsigned kMost = 64;
  std::vector<unsigned> numbers;
  unsigned number = 0;
  for (std::size_t i = 0; i < parts.input.tensors.size(); ++i) {
    if (parts.input.padded_dims[i] == 0) continue;
    const bool is_mask =
        parts.padding->mask.defined() && parts.input.tensors[i].is_same(parts.padding->mask);
    if (!is_mask && number < kMost) numbers.push_back(number);
    ++number;
  }
  return numbers;
}

bool is_on_accelerator(const CallParts& parts) {
  return parts.input.device.has_value() && !parts.input.device->is_cpu();
}

std::int64_t longest_of(const CallParts& parts, const std::vector<std::int64_t>& rows) {
  std::int64_t longest = 0;
  for (const std::int64_t row : rows) {
    longest = std::max(longest, parts.padding->lengths[static_cast<std::size_t>(row)]);
  }
  return longest;
}

// Numbers of few bits, and sums of them, depend on the batch that they are computed in.
double tolerance_of(const CallParts& parts, const tensor::Flat& result) {
  constexpr double kTolerance = 1e-3;
  constexpr double kToleranceOfFewBits = 5e-2;
  const bool are_few =
      tensor::is_of_few_bits(parts.arithmetic_state()) ||
      std::any_of(result.tensors.begin(), result.tensors.end(), [](const at::Tensor& tensor) {
        return tensor.is_floating_point() && tensor.element_size() < 4;
      });
  return are_few ? kToleranceOfFewBits : kTolerance;
}

}  // namespace

PaddingTrials::PaddingTrials(const CallParts& parts, tensor::Flat result,
                             std::vector<std::int64_t> rows,
                             const std::optional<LearnedPadding>& learned)
    : parts_(&parts),
      result_(std::move(result)),
      rows_(std::move(rows)),
      learned_(learned.value_or(LearnedPadding())) {
  learned_.why_not.clear();
  const std::vector<unsigned> padded = padded_beside_mask(parts);
  if (padded.size() > kMostPadded && !learned_.are_sizes_known) {
    learned_.why_not =
        "more tensors than " + std::to_string(kMostPadded) +
        " are padded to one length, so that it cannot be tried whether all of them are padded as "
        "the mask says; name those that change no result in ignore=";
    return;
  }
  was_beyond_row_ = parts.padding->longest > longest_of(parts, rows_);
  trials_ = plan_trials(*parts.padding, rows_, padded, learned, is_on_accelerator(parts));
  if (trials_.empty()) return;
  for (at::Tensor& tensor : result_.tensors) tensor = tensor::copy_of(tensor.detach());
}

std::optional<PaddingTrial> PaddingTrials::next() const {
  if (!learned_.why_not.empty() || next_ == trials_.size()) return std::nullopt;
  return trials_[next_];
}

// The model has its result, and a failure of the comparison must not take it away.
void PaddingTrials::judge(const std::optional<tensor::Flat>& tried) {
  using Kind = PaddingTrial::Kind;
  PaddingTrial trial = trials_[next_++];
  const auto is_same_kind = [&] {
    return next_ < trials_.size() && trials_[next_].kind == trial.kind;
  };
  if (trial.kind == Kind::kSome || trial.kind == Kind::kUnused) {
    judge_trial_of_some(trial, tried);
    return;
  }
  if (!tried.has_value() && trial.kind == Kind::kCut) return;  // take_learned() sees that
  if (!tried.has_value()) {
    if (!is_same_kind()) learned_.why_not = "it cannot be run on a row of another length";
    return;
  }
  try {
    trial.place = std::find(rows_.begin(), rows_.end(), trial.row) - rows_.begin();
    judge_trial(result_, *tried, trial, *parts_->padding, tolerance_of(*parts_, result_), learned_);
    was_cut_ = was_cut_ || trial.kind == Kind::kCut;
    was_beyond_row_ = was_beyond_row_ || trial.length > longest_of(*parts_, {trial.row});
  } catch (const std::exception& error) {
    report_failure(*parts_, "compared with a row of another length", error);
    learned_.why_not = "it could not be compared with a row of another length";
  }
  while (is_same_kind()) ++next_;
}

// These are the last trials. Where the module takes tensors of several lengths, those that it does
// not use are looked for, and the others are tried once more.
void PaddingTrials::judge_trial_of_some(const PaddingTrial& trial,
                                        const std::optional<tensor::Flat>& tried) {
  const auto plan = [&](const std::vector<PaddingTrial>& trials) {
    trials_.resize(next_);
    trials_.insert(trials_.end(), trials.begin(), trials.end());
  };
  if (trial.kind == PaddingTrial::Kind::kSome) {
    if (!tried.has_value()) return;
    if (used_.has_value()) {
      learned_.why_not =
          "it takes tensors of several lengths, which were padded to one by chance; pad those that "
          "the mask is not for to another, or name them in ignore= if they change no result";
      return;
    }
    used_ = 0;
    plan(plan_trials_of_use(trial, padded_beside_mask(*parts_)));
  } else if (trial.altered == PaddingTrial::kNone) {
    unaltered_ = tried;
  } else {
    if (!is_as_unaltered(tried)) *used_ |= trial.kept;
    if (next_ < trials_.size()) return;
    plan(plan_trials_of_some(trial, padded_beside_mask(*parts_), *used_));
  }
}

bool PaddingTrials::is_as_unaltered(const std::optional<tensor::Flat>& tried) const {
  if (!tried.has_value() || !unaltered_.has_value()) return false;
  try {
    return tensor::difference(*tried, *unaltered_, {0, 0}).empty();
  } catch (const std::exception& error) {
    report_failure(*parts_, "compared with a row of another length", error);
    return false;
  }
}

LearnedPadding PaddingTrials::take_learned() {
  // A size that stays may be that of the row, where no part of a row was run.
  const std::vector<tensor::DimSet>& dims = learned_.dims;
  const bool stays = std::find(dims.begin(), dims.end(), 0) != dims.end();
  const bool follows = std::any_of(dims.begin(), dims.end(), [](auto set) { return set != 0; });
  const bool may_follow_rows = (stays && !was_cut_) || (follows && !was_beyond_row_);
  if (learned_.why_not.empty() && !learned_.are_sizes_known && may_follow_rows) {
    learned_.why_not = "it cannot be seen whether its result is as long as its row";
  }
  if (learned_.why_not.empty()) {
    learned_.are_sizes_known = true;
    learned_.failures = 0;
    learned_.signature = parts_->input.signature;
  } else if (!learned_.is_refused() && longest_of(*parts_, rows_) > 1) {
    ++learned_.failures;
  }
  return std::move(learned_);
}

}  // namespace modcache::module
