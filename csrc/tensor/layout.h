// SPDX-License-Identifier: Apache-2.0
//
// Layout: the meaning of a value's bytes: its header, and the place of each tensor in the payload.
// Immutable. The rows of a batch share their layout, and so do the lone tensors of one shape and
// dtype that are stored after one another.
//
// A lone tensor is the whole payload. Where there are several, each begins at a multiple of 64
// bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "cache/value.h"
#include "codec/codec.h"
#include "tensor/value_header.h"

namespace modcache::tensor {

struct Tolerance {
  double relative = 0;  // relative to the largest number of a tensor
  double absolute = 0;
};

// Returns whether tensors of these sizes have elements that can be counted, `rows` of them side by
// side. torch computes strides also for empty tensors, and refuses those that overflow.
bool has_countable_elements(const std::vector<std::int64_t>& sizes, std::int64_t rows = 1);

// The knowledge about the rows of a result (module/call/row_proof.h).
struct RowMarks {
  // The tensors that have no rows, and are stored with each row: in ascending order.
  std::vector<std::size_t> constants = {};
  bool are_unproven = false;        // they serve batches of one only
  bool are_unproven_alone = false;  // they serve batches of several rows only
};

class Layout;
using LayoutPtr = std::shared_ptr<const Layout>;

class Layout : public std::enable_shared_from_this<Layout> {
 public:
  struct Place {
    std::size_t offset = 0;
    std::size_t size_bytes = 0;
    at::ScalarType dtype = at::kFloat;         // the dtype of a hit
    at::ScalarType stored_dtype = at::kFloat;  // the dtype of the bytes
    std::vector<std::int64_t> sizes;           // in the order of the dimensions in memory
  };

  // Return kCorruption for a dtype that this torch lacks or that cannot be stored, and for sizes
  // that overflow.
  static Result<LayoutPtr> of(ValueHeader header);
  static Result<LayoutPtr> decode(std::string_view header);

  // Makes the layout of a value whose tensors copy_to_store() copied from `originals`. With
  // `row`, it is the layout of one row of them; then all have a first dimension. Null: of all.
  static LayoutPtr of_stored(Node root, const std::vector<at::Tensor>& copies,
                             const std::vector<at::Tensor>& originals,
                             std::optional<at::Device> input_device, const RowMarks* row);

  const Node& root() const { return header_.root; }
  bool is_lone_tensor() const { return header_.root.kind == Node::Kind::kTensor; }
  // Returns whether it is stored in the dtype of a hit.
  bool is_plain_lone_tensor() const {
    return is_lone_tensor() && places_.front().dtype == places_.front().stored_dtype;
  }
  const std::vector<TensorLayout>& tensors() const { return header_.tensors; }
  const std::vector<Place>& places() const { return places_; }
  std::uint8_t codec() const { return header_.codec; }
  bool is_encoded() const { return header_.codec != 0; }
  std::size_t payload_size_bytes() const { return payload_size_bytes_; }
  std::size_t element_size_bytes() const;  // of the first tensor, for the codec
  // Returns what a new value that holds the layout counts for it. Together, values that came one
  // after another count at least what the layout takes; those left when others went may count less.
  static std::size_t share_bytes(const LayoutPtr& layout);
  std::string header_with(std::uint8_t codec) const;

  // The distance that numbers may have from the stored ones: `rtol`, and the rounding of the stored
  // dtype.
  Tolerance tolerance(double rtol) const;

  // Makes the layout of a row with this layout after it was cut to `length` in `dims`, a set for
  // each tensor (row_padding.h).
  LayoutPtr cut_to_length(const std::vector<std::uint64_t>& dims, std::int64_t length) const;
  // Returns the length that a row was cut to; nothing for a row that was not cut.
  std::optional<std::int64_t> length() const;
  // Returns the dimensions that were cut, a set for each tensor.
  std::vector<std::uint64_t> padded_dims() const;
  const RowMarks& row_marks() const { return row_marks_; }
  // Returns whether the row serves batches of one, or of several rows, only where these are proven.
  bool is_unproven(bool in_batch_of_one) const {
    return in_batch_of_one ? row_marks_.are_unproven_alone : row_marks_.are_unproven;
  }

  // Returns whether values of both can be rows of one batch: the same tree, dtypes and shapes. The
  // order of dimensions may differ. With `is_padded`, the lengths that they were cut to may differ.
  bool has_rows_like(const Layout& other, bool is_padded = false) const;
  // Returns whether one module may have returned both: the same tree, dtypes and numbers of
  // dimensions. Sizes and plain values may differ between its batches.
  bool has_rows_of_the_kind_of(const Layout& other) const;

 private:
  static Result<LayoutPtr> make(ValueHeader header);

  ValueHeader header_;
  std::vector<Place> places_;
  RowMarks row_marks_;
  std::size_t payload_size_bytes_ = 0;
  std::size_t size_bytes_ = 0;
};

// Returns a copy of tensor `i` of a value whose payload is at `payload`, in its original dtype and
// order.
at::Tensor tensor_at(const Layout& layout, std::size_t i, const std::byte* payload);

// Converts a value's payload to the bytes of a record and back: unchanged, or through a codec.
// Encodes the payload where that makes it smaller.
cache::Written write_payload(const Layout& layout, SharedBytes payload, codec::Codec codec);

// Returns whether the stored bytes are the payload as it is.
bool is_plain(const Layout& layout);

// Returns kCorruption when a stored payload of this size cannot belong to `layout`. Call it before
// taking memory for the value.
Status check_payload_size(const Layout& layout, std::size_t stored_size_bytes);

// Fills layout.payload_size_bytes() bytes at `target`. `read` fills its buffer with the stored
// bytes, whose checksum it has checked. REQUIRES: check_payload_size() is ok.
using ReadStored = std::function<Status(void* target)>;
Status read_payload(const Layout& layout, std::size_t stored_size_bytes, const ReadStored& read,
                    void* target);

}  // namespace modcache::tensor
