// SPDX-License-Identifier: Apache-2.0
//
// LearnedPadding: which dimensions of a module's results are padded with their batch, and whether
// the results are the same at every padding. Neither is guessed from sizes, and no mask is trusted:
// one row is run again by itself, in trials of these kinds.
//
//  - Another padding: the true part must come out the same. Repeated for the first batches, with
//    two rows of each: the shortest, and the longest that is padded. One row may agree by chance, a
//    row of one place above all: a module that takes its padding for data may give it the same.
//  - Another length, far away or longer than the row, and a part of the row, of two places if the
//    module takes so few: each size of the result must follow the length of the input, or stay.
//    Sizes that follow the rows' own lengths, or the length in steps or up to some length, are not
//    cached.
//  - Another length of some padded tensors: the module must refuse that. Otherwise the others were
//    padded for themselves, to the same size by chance, and the mask says nothing about them.
//  - Only where it did not refuse: other numbers, and another length, of one padded tensor. If it
//    gives the same, it does not use that tensor, such as the labels in a batch that it takes
//    whole. Callers leave this out for a tensor that their module declares, since one row may not
//    need it.
//
// Kept for each form of a module's input, by its digest, in this process; and under the digest of
// the context what was noted last, for programs that are recorded. Thread-safe.
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
  std::vector<tensor::DimSet> dims = {};  // for each tensor of a result
  // The sizes of a row of each tensor; those of padded dimensions mean nothing.
  std::vector<std::vector<std::int64_t>> sizes = {};
  // The share by which two batches' lengths differed between which a row gave the same; 0: it was
  // not seen. A small share shows little: a mean over 63 tokens is nearly that over 64.
  double shown_share = 0;
  int agreements = 0;            // batches whose trials at another padding came out the same
  bool are_sizes_known = false;  // trials of the other two kinds came out well
  // The reason why the last result was not cached; empty: it was. Completes "it is not cached,
  // since ...". It is final where a row gave another result, or nothing could be shown three times.
  std::string why_not = {};
  int failures = 0;
  std::string signature = {};  // of the last input that was tried and found well

  bool agrees() const { return shown_share > 0 && are_sizes_known; }
  bool is_refused() const;
  // Returns whether a result for padded rows has the longest size in the padded dimensions, and
  // that which was seen in all others.
  bool fits(const tensor::Flat& result, std::int64_t longest) const;
  // Returns whether as much was shown as is ever tried, so that programs without trials may rely on
  // it.
  bool is_settled() const;
};

// The number of trials at another padding that have to come out the same until none is made.
// A row may agree by chance, as a maximum does where it lies in the true part.
constexpr int kEnoughAgreements = 8;

// Returns what stands for a module whose results are not cached for this reason, whatever is tried.
LearnedPadding refused_padding(std::string why_not);

std::optional<LearnedPadding> learned_padding(const Digest128& form);
void note_padding(const Digest128& form, LearnedPadding learned);

// A row that is to be run once more, by itself (one_row_of_length).
struct PaddingTrial {
  enum class Kind { kPadding, kSecondRow, kLength, kCut, kSome, kUnused };

  std::int64_t row = 0;  // of the batch
  std::int64_t length = 0;
  std::uint64_t kept = 0;
  Kind kind = Kind::kPadding;
  std::int64_t place = 0;  // of the row in the result of the batch; see judge_trial()
  // The padded tensor that gets other numbers, in trials of kind kUnused. The first of these has
  // none: the others are compared with it.
  std::int64_t altered = kNone;

  static constexpr std::int64_t kNone = -1;
};

// Returns the trials that show what is not known, in order. Of those of one kind but kSome, the
// later ones are for a module that does not take a row of the length of the earlier ones, for
// instance since it has fewer positions. `padded`: the padded tensors of the input besides the
// mask, by their order among all padded ones; at most 64. REQUIRES: padding.longest > 0, and `rows`
// is not empty. On an accelerator no row is longer than its batch: an index beyond a table, such as
// that of positions, would break the process there, while the CPU raises an exception.
std::vector<PaddingTrial> plan_trials(const tensor::RowPadding& padding,
                                      const std::vector<std::int64_t>& rows,
                                      const std::vector<unsigned>& padded,
                                      const std::optional<LearnedPadding>& learned,
                                      bool is_on_accelerator = false);

// The number of padded tensors besides the mask up to which trials tell those apart that were
// padded for themselves. There is a trial for each set of them.
constexpr std::size_t kMostPadded = 8;

// Returns whether a result for padded rows has the longest size in these dimensions.
bool has_padded_dims(const tensor::Flat& result, const std::vector<tensor::DimSet>& dims,
                     std::int64_t longest);

// Return trials of the row and the length of `some`, a trial of kind kSome that was not refused:
// those that show which padded tensors are used; and then those of kind kSome that leave some of
// the used ones, as bits, as they are and not all.
std::vector<PaddingTrial> plan_trials_of_use(const PaddingTrial& some,
                                             const std::vector<unsigned>& padded);
std::vector<PaddingTrial> plan_trials_of_some(const PaddingTrial& some,
                                              const std::vector<unsigned>& padded,
                                              std::uint64_t used);

// Adds to `learned` what a trial that could be run showed; sets its `why_not`, and `failures` to
// the largest number where that is final. `result` is that of the batch. `tolerance` is relative to
// the largest number of a tensor.
void judge_trial(const tensor::Flat& result, const tensor::Flat& tried, const PaddingTrial& trial,
                 const tensor::RowPadding& padding, double tolerance, LearnedPadding& learned);

}  // namespace modcache::module
