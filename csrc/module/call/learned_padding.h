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
  // The share by which two batches' lengths differed between which a row gave the same; 0: it was
  // not seen. A small share shows little: a mean over 63 tokens is nearly that over 64.
  double shown_share = 0;
  // The reason why the results are not cached; empty: they are. See judge_trial().
  std::string why_not = {};

  bool agrees() const { return shown_share > 0; }
};

std::optional<LearnedPadding> learned_padding(const Digest128& context);
void note_padding(const Digest128& context, LearnedPadding learned);

// A row that is to be run once more, by itself.
struct PaddingTrial {
  std::int64_t row = 0;     // of the batch
  std::int64_t length = 0;  // to which its input is cut, or padded (one_row_of_length)
};

// Returns the trial that shows what is not known; nothing when all is known that these rows need. A
// module may not take a row that is longer, for instance than its positions: then `attempt` is
// raised, until there is nothing left to try, which is nothing, too. REQUIRES: padding.longest > 0,
// and `rows` is not empty.
std::optional<PaddingTrial> plan_trial(const tensor::RowPadding& padding,
                                       const std::vector<std::int64_t>& rows,
                                       const std::optional<LearnedPadding>& learned,
                                       std::size_t attempt = 0);

// Returns whether a result for padded rows has the longest size in these dimensions.
bool has_padded_dims(const tensor::Flat& result, const std::vector<tensor::DimSet>& dims,
                     std::int64_t longest);

// Returns what a trial showed. Its `why_not` completes "it is not cached, since ...".
// `result` is that of the batch, in which the row of the trial is number `place`. `tolerance` is
// relative to the largest number of a tensor.
LearnedPadding judge_trial(const tensor::Flat& result, std::int64_t place,
                           const tensor::Flat& tried, const PaddingTrial& trial,
                           const tensor::RowPadding& padding, double tolerance);

}  // namespace modcache::module
