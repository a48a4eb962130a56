// SPDX-License-Identifier: Apache-2.0
//
// Rows of a batch: functions that select rows from its tensors, and RowsOutput, which assembles a
// batch from rows that were stored and rows that were just computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/layout.h"
#include "tensor/row_padding.h"
#include "tensor/torch_version.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// Returns the given rows of a tensor of any dtype, on its device and in the same order of
// dimensions in memory. REQUIRES: it has a first dimension.
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows);
// Does the same for every tensor in an input; other values stay as they are.
at::IValue select_rows(const at::IValue& input, const std::vector<std::int64_t>& rows);

// Returns why `result` cannot be a module's result for `rows` rows; empty when it can. The text
// completes "it returned ...".
std::string why_no_rows(const Flat& result, std::int64_t rows);

// Addresses a row in a block of rows, and copies the bytes of one.
// REQUIRES: `block` is contiguous, and each of its rows has `size_bytes` bytes.
inline std::byte* row_of(const at::Tensor& block, std::size_t row, std::size_t size_bytes) {
  return mutable_bytes(block) + row * size_bytes;
}

// Both pointers may be null when `size_bytes` is 0, which memcpy does not allow.
inline void copy_bytes(void* target, const void* source, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(target, source, size_bytes);
}

// A stored row, and where its bytes are.
struct StoredRow {
  std::size_t row = 0;  // its place in the batch
  const Layout* layout = nullptr;
  const std::byte* bytes = nullptr;   // decoded bytes that may be copied; null: call `read`
  std::size_t stored_size_bytes = 0;  // of the bytes that `read` returns
  std::size_t index = 0;              // the number by which `read` knows the row
};

// Assembles the rows of a batch. Rows may be added in any order, each once. For one thread.
class RowsOutput {
 public:
  // `is_pinned`: the batch is assembled in page-locked memory (placement.h), from which it is
  // copied to a device while the host continues.
  // `padding`: null, or what stored rows are padded to. It must outlive this.
  explicit RowsOutput(std::size_t rows, bool is_pinned = false, const RowPadding* padding = nullptr)
      : rows_(rows), is_pinned_(is_pinned), padding_(padding) {}

  // Copies stored rows straight to their places. `read` fills its target with the stored bytes of
  // one row after checking them; several threads may call it. Returns which of `rows` could not be
  // read, and why.
  using ReadStored = std::function<Status(std::size_t index, void* target)>;
  struct Failure {
    std::size_t place = 0;  // in `rows`
    Status status;
  };
  // Rows of another kind than most of them (Layout::has_rows_of_the_kind_of) are not read, and fail
  // with kCorruption.
  std::vector<Failure> add_stored(const std::vector<StoredRow>& rows, const ReadStored& read);

  // Returns the padded dimensions of the stored rows, a set for each tensor; nothing when no row
  // was added.
  std::optional<std::vector<DimSet>> padded_dims() const;

  // Adds a module's result for `rows`. REQUIRES: all tensors have `rows` as their first size.
  void add_computed(std::vector<std::int64_t> rows, Flat result);

  // Declares tensors of computed results that have no rows: each of their rows holds all of it.
  void set_constants(std::vector<std::size_t> constants) { constants_ = std::move(constants); }
  // Returns what the stored rows say of themselves; null when no row was added.
  const RowMarks* row_marks() const;

  // Returns whether stored rows are of another kind than the computed ones or than each other.
  bool has_odd_stored_rows() const;

  // Makes row `row` equal to row `same_as`.
  void repeat(std::size_t row, std::size_t same_as) { repeated_.emplace_back(row, same_as); }

  // Returns all rows in order. Returns nothing when they do not fit together: their shapes, dtypes,
  // plain values, nesting or constants differ. The strides are those of the batch that the first
  // stored row was cut from; where none is stored, those of the first computed result. REQUIRES:
  // every row was added or repeated.
  std::optional<Flat> together(std::optional<at::Device> input_device);
  // Returns each row by itself. Call it when together() returned nothing.
  std::vector<Flat> apart(std::optional<at::Device> input_device);

 private:
  struct Computed {
    std::vector<std::int64_t> rows;
    Flat result;
  };
  struct Single {  // a stored row that does not fit the first one
    std::size_t row = 0;
    LayoutPtr layout;
    std::vector<at::Tensor> tensors;
  };

  std::vector<std::size_t> add_like_the_first(const std::vector<StoredRow>& rows,
                                              std::vector<std::size_t> places,
                                              const ReadStored& read,
                                              std::vector<Status>& statuses);
  std::vector<std::size_t> of_the_commonest_kind(const std::vector<StoredRow>& rows,
                                                 std::vector<Status>& statuses) const;
  Status copy_row(const StoredRow& row, const ReadStored& read);
  void copy_tensor(const StoredRow& row, std::size_t i, const std::byte* payload);
  void copy_padded(const StoredRow& row, std::size_t i, const std::byte* payload);
  std::optional<Flat> rows_together(std::optional<at::Device> input_device);
  bool take_constants(Flat& rows) const;
  const std::vector<std::size_t>& constants() const;
  bool has_odd_length(const StoredRow& row) const;
  // Returns whether the row lacks padding that this batch has.
  bool is_shorter(const Layout& layout) const;
  std::vector<std::int64_t> row_sizes(std::size_t i) const;
  Status read_single(const StoredRow& row, const ReadStored& read);
  bool fits_the_first(const StoredRow& row) const;
  bool fits_the_block(const StoredRow& row) const;
  bool is_like_block(const Layout& layout, std::size_t i) const;
  at::Tensor room(at::IntArrayRef sizes, at::ScalarType dtype) const;
  at::Tensor sent(const at::Tensor& block, const at::Device& device) const;
  TensorLayout row_layout(std::size_t i) const;
  bool has_rows_of_the_layout(const Flat& result) const;
  Status begin(const StoredRow& first);
  void widen();
  bool do_computed_fit() const;
  Flat copied_on_cpu();
  Flat gathered() const;
  void copy_repeated();

  std::size_t rows_;
  bool is_pinned_;
  const RowPadding* padding_;
  LayoutPtr layout_;  // of the first stored row
  // Room for all rows, each in one piece and in the order of dimensions that layout_ has; the
  // stored ones are in their places.
  std::vector<at::Tensor> block_;
  std::vector<std::size_t> stored_;
  std::vector<Single> singles_;
  std::vector<Computed> computed_;
  std::vector<std::size_t> constants_;  // of the computed results
  std::vector<std::pair<std::size_t, std::size_t>> repeated_;
};

}  // namespace modcache::tensor
