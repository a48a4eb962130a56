// SPDX-License-Identifier: Apache-2.0
//
// RowProof: whether the results of a module may be stored by row. A result whose first size equals
// the number of keys may be rows by chance: in a batch of one, the states of a GRU, a loss and a
// constant all have a first size of 1. So rows are proven. Before the first result of a context
// (scope, method, form) is stored by row, one check run shows that first sizes follow the rows, and
// that a row does not depend on the other rows of its batch.
//
//  - A batch of several rows, of which two differ: its last row is run alone.
//  - A batch of one: it is run together with a second row, which is made from it and comes first:
//    its last dimension is reversed, and its numbers are halved, as a BatchNorm takes statistics
//    that no order changes.
//  - A batch of several rows that are all equal: both. Where no row can be made, its last row is
//    run alone, and its results have to differ between rows.
//  - A graph that cannot catch exceptions (lowered/lowered.h): as many rows again, all equal to the
//    last one. The shape is the same, so a first size that equals the number of rows by chance is
//    told from rows by its values alone; where these do not tell, nothing is proven. Nor does it
//    show a batch of one, whose result may lack the first dimension.
//
// Entries are marked where they serve batches of one only, or batches of several rows only
// (TensorLayout::is_unproven, is_unproven_alone). All others serve every batch, whoever stored
// them.
//
// What is known is kept in this process, and as a note in the directory (store/directory/notes.h).
// Functions that use the directory never fail because the cache does. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/context.h"
#include "module/call/call_parts.h"
#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::module {

struct RowProof {
  enum class Verdict { kUnknown, kProven, kRefuted };

  Verdict verdict = Verdict::kUnknown;
  // Proven: the tensors of a result that have no rows but were equal in both runs. They are stored
  // with each row.
  std::vector<std::size_t> constants = {};
  // Proven: also for a batch of one.
  bool holds_for_one = true;
  // Refuted: the reason. Completes "not caching X: ".
  std::string why_not = {};
  // Unknown: a check run of a batch of one raised or showed nothing, and is not repeated.
  bool was_tried_alone = false;

  static RowProof refuted(std::string why_not) {
    RowProof proof;
    proof.verdict = Verdict::kRefuted;
    proof.why_not = std::move(why_not);
    return proof;
  }

  bool is_known() const { return verdict != Verdict::kUnknown; }
  bool is_proven() const { return verdict == Verdict::kProven; }
  bool is_refuted() const { return verdict == Verdict::kRefuted; }
};

// Returns what this process or the directory knows of the rows of a context.
RowProof row_proof_of(const CallParts& parts, const store::Context& context);

// Remembers it. A refutation with `is_for_process` is not written to the directory.
void note_row_proof(const CallParts& parts, const store::Context& context, const RowProof& proof,
                    bool is_for_process = false);

// Forgets what is known of a scope whose entries were cleared, as its name may get another meaning;
// of all scopes where it is empty.
void forget_row_proofs(const CallParts& parts, const std::string& scope);

// A check run: `rows` rows made from `row` of the input, the last of them `row` itself.
struct RowCheck {
  enum class Kind { kAlone, kBeside, kSameShape };

  Kind kind = Kind::kAlone;
  std::int64_t row = 0;
  std::int64_t rows = 1;  // of the check run
  // kBeside: integers that are all 0 or all 1 are exchanged, too, as nothing else would differ.
  bool exchanges_bits = false;
  // The tensors of the input do not differ between its rows, which may have images or others that
  // the library does not see. Then only results that differ between rows show anything.
  bool needs_different_results = false;

  // kBeside: the other rows are made from `row`; otherwise they equal it.
  bool has_made_rows() const { return kind == Kind::kBeside; }
};

// Returns the check runs for a run of these rows of the input; none where they would show nothing.
// They are made from the last one. `tensors`: those of the input. `has_fixed_shape`: a check run
// must have the shape of the run.
std::vector<RowCheck> plan_row_checks(const std::vector<at::Tensor>& tensors,
                                      const std::vector<std::int64_t>& rows, bool has_fixed_shape);

// Returns the input of a check run: that of the call with these rows in every tensor.
at::IValue check_input(const at::IValue& input, const RowCheck& check);
at::Tensor check_rows_of(const at::Tensor& tensor, const RowCheck& check);

// Returns rows made from these: their last dimension is reversed, and their numbers are halved.
// Integers that are 0 or 1, as those of a mask, are only reversed, or with `exchanges_bits`
// exchanged.
at::Tensor made_rows(const at::Tensor& rows, bool exchanges_bits);

// The run that a check run is compared with: its result for `rows` rows, whose last one was run
// again. `who`: for the reason.
struct CheckedRun {
  std::string who;
  const tensor::Flat& result;
  std::int64_t rows = 0;
  tensor::Tolerance tolerance;
  bool is_ragged = false;  // rows may differ in shape
};
RowProof judge_row_check(const CheckedRun& run, const tensor::Flat& checked, const RowCheck& check);

// Returns the tolerance, relative to the largest number of a row: 1e-2 where numbers have few bits,
// otherwise 1e-4.
tensor::Tolerance row_tolerance(const CallParts& parts, const tensor::Flat& result);

// The reason for a result that has no rows, found without a check run. Completes "not caching X: ".
std::string why_not_rows(const std::string& who, const tensor::Flat& result, std::int64_t rows);

// Returns whether every tensor but `constants` has `rows` as its first size.
bool has_first_sizes(const tensor::Flat& result, std::int64_t rows,
                     const std::vector<std::size_t>& constants);

// Returns the result with each constant once for each row.
tensor::Flat with_constants_by_row(const tensor::Flat& result, std::int64_t rows,
                                   const std::vector<std::size_t>& constants);

}  // namespace modcache::module
