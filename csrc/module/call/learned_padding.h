// SPDX-License-Identifier: Apache-2.0
//
// LearnedPadding: which dimensions of a module's results are padded with their batch, and whether
// the results are the same at every padding. Shapes alone cannot tell, as a width may be the length
// by chance; so one row is run once more at another length, and compared. Kept for each context, by
// its digest, in this process. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "tensor/row_padding.h"
#include "tensor/tree.h"

namespace modcache::module {

struct LearnedPadding {
  std::vector<tensor::DimSet> dims;  // for each tensor of a result
  bool agrees = false;               // a row gave the same at two paddings
};

std::optional<LearnedPadding> learned_padding(const Digest128& context);
void note_padding(const Digest128& context, LearnedPadding learned);

// A row that is to be run once more, by itself.
struct PaddingTrial {
  std::int64_t row = 0;     // of the batch
  std::int64_t length = 0;  // to which its input is cut, or padded (one_row_of_length)
};

// Returns the trial that shows what is not known; nothing when all is known that these rows need.
// REQUIRES: padding.longest > 0, and `rows` is not empty.
std::optional<PaddingTrial> plan_trial(const tensor::RowPadding& padding,
                                       const std::vector<std::int64_t>& rows,
                                       const std::optional<LearnedPadding>& learned);

// Returns whether a result for padded rows has the longest size in these dimensions.
bool has_padded_dims(const tensor::Flat& result, const std::vector<tensor::DimSet>& dims,
                     std::int64_t longest);

// The findings of a trial. `why_not` is empty, or completes "it is not cached, since ...".
struct TrialOutcome {
  LearnedPadding learned;
  std::string why_not;
};
// `result` is that of the batch, in which the row of the trial is number `place`. `tolerance` is
// relative to the largest number of a tensor.
TrialOutcome judge_trial(const tensor::Flat& result, std::int64_t place, const tensor::Flat& tried,
                         const PaddingTrial& trial, const tensor::RowPadding& padding,
                         double tolerance);

}  // namespace modcache::module
