// SPDX-License-Identifier: Apache-2.0
//
// PaddingTrials: the trials of one run's result whose rows have lengths of their own.
// learned_padding.h says what they are and what each kind shows.
//
//     PaddingTrials trials(parts, result, rows, learned);
//     while (auto trial = trials.next()) trials.judge(<run the module on that row>);
//     learned = trials.take_learned();  result = trials.take_result();
//
// A comparison that fails is counted, and thrown under strict=true alone; the module's result is
// then not cached. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "module/call/learned_padding.h"
#include "module/call/rules.h"
#include "tensor/row_padding.h"
#include "tensor/tree.h"

namespace modcache::module {

class PaddingTrials {
 public:
  // `result` is copied where there are trials, since a module may write each result to one buffer.
  // `rows`: the rows of the batch that ran. `learned`: what is known of the module's results.
  // `parts` must outlive this. REQUIRES: parts.padding, and rows that are not empty.
  PaddingTrials(const CallParts& parts, tensor::Flat result, std::vector<std::int64_t> rows,
                const std::optional<LearnedPadding>& learned);

  // Returns the row that has to be run once more; nothing when all is seen that can be.
  std::optional<PaddingTrial> next() const;
  // Returns whether the result may not be kept, whatever further trials would show.
  bool are_refused() const { return !learned_.why_not.empty(); }
  // Takes over what the next trial gave. Nothing: the module raised.
  void judge(const std::optional<tensor::Flat>& tried);

  // Call them once, after the last trial. What was learned has a `why_not` where the result may not
  // be kept.
  LearnedPadding take_learned();
  tensor::Flat take_result() { return std::move(result_); }

 private:
  void judge_trial_of_some(const PaddingTrial& trial, const std::optional<tensor::Flat>& tried);
  bool is_as_unaltered(const std::optional<tensor::Flat>& tried) const;

  const CallParts* parts_;
  tensor::Flat result_;
  std::vector<std::int64_t> rows_;
  std::vector<PaddingTrial> trials_;
  std::size_t next_ = 0;
  LearnedPadding learned_;
  bool was_cut_ = false;         // a part of a true part was run
  bool was_beyond_row_ = false;  // a row was padded beyond the longest row of its batch
  // Where the module takes tensors of several lengths: the padded ones that it uses, as bits, and
  // what it gives where they are as they were.
  std::optional<std::uint64_t> used_ = {};
  std::optional<tensor::Flat> unaltered_ = {};
};

}  // namespace modcache::module
