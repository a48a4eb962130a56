// SPDX-License-Identifier: Apache-2.0
//
// RowPadding: rows of their own length in a batch that was padded to one, such as sentences. An
// entry has the true part of its row alone, so that it is found whatever its batch was padded to,
// and is handed out padded to what the batch at hand has, and on the same side.
//
// Rows that are padded on the left have entries of their own: padding may shift positions there, so
// that what was seen of one side says nothing of the other.
//
// The padded dimension of an input's tensors is the one after the rows, where it has the size that
// the batch was padded to. A tensor that has this size elsewhere does not tell which of its
// dimensions are padded, so such a call is not cached. Results may have the size by chance, so
// their padded dimensions are learned (module/call/learned_padding.h) or come with an entry
// (TensorLayout::padded_dims). Sets of dimensions are bits: bit d is dimension d of a row, that is,
// dimension d + 1 of a batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tree.h"

namespace modcache::tensor {

using DimSet = std::uint64_t;

// Where the true part of a row is; kLast is padding on the left.
enum class TruePart { kFirst, kLast };

struct RowPadding {
  std::int64_t longest = 0;               // the size of padded dimensions in this batch
  std::vector<std::int64_t> lengths;      // of each row's true part
  double value = 0;                       // what results are padded with
  at::Tensor mask;                        // which said so; undefined where lengths did
  TruePart true_part = TruePart::kFirst;  // of all rows
  // Why the rows have no true part in one piece on one side; empty when they have one. The text
  // completes "its input holds a tensor that is ...".
  std::string why_not;

  // A mask [B, L] of booleans or numbers is true where it is not 0; lengths [B] are integers. Throw
  // ValueErrors for others, and for lengths that are negative or greater than `longest`.
  static RowPadding of_mask(const at::Tensor& mask, double value);
  static RowPadding of_lengths(const at::Tensor& lengths, std::int64_t longest, double value);

  // Returns the first place of a part of this length in a dimension of this size.
  static std::int64_t first_of(TruePart part, std::int64_t size, std::int64_t length) {
    return part == TruePart::kFirst ? 0 : size - length;
  }
};

// Returns whether a tensor of an input is padded.
inline bool is_padded(const at::Tensor& batch, std::int64_t longest) {
  return batch.dim() > 1 && batch.size(1) == longest;
}
// Returns whether another dimension has the size, too.
bool is_ambiguous(const at::Tensor& batch, std::int64_t longest);

// Returns a view of a row, cut to `length` in the dimensions `dims` (of the row).
at::Tensor cut_to_length(const at::Tensor& row, DimSet dims, std::int64_t length,
                         TruePart part = TruePart::kFirst);

// Returns the input with the one row `row`, cut to `length` where it is padded, or padded further
// with zeros where that is more than the longest. `kept`: the padded tensors that are left as long
// as they are, as bits by their order. REQUIRES: every tensor has a first dimension.
at::IValue one_row_of_length(const at::IValue& input, std::int64_t row, const RowPadding& padding,
                             std::int64_t length, std::uint64_t kept);
at::Tensor one_row_of_length(const at::Tensor& tensor, std::int64_t row, std::int64_t longest,
                             std::int64_t length, TruePart part = TruePart::kFirst);

// Returns the padding's value as a number of this dtype: infinite, or the nearest integer, where it
// has no such number. Null bits for a dtype that lacks operators.
at::Tensor pad_value_of(at::ScalarType dtype, double value);

// Returns `batch` with the padding's value beside the true part of each row. `rows` are the numbers
// of its rows in the padding. Autograd follows it. REQUIRES: the dimensions have the longest size.
at::Tensor with_padding(const at::Tensor& batch, DimSet dims, const RowPadding& padding,
                        const std::vector<std::int64_t>& rows);

}  // namespace modcache::tensor
