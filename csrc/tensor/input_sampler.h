// SPDX-License-Identifier: Apache-2.0
//
// InputSampler: measures the values of a call's input, whole or row by row. The measure is compared
// with that of the input that an entry was computed from (cache/input_sample.h). It depends on the
// logical elements alone, not on strides and device. A short row is read whole. A long one is read
// in up to 16 pieces of a cache line each, at places that the shape alone determines.
//
// Tensors on an accelerator are read for all rows at once, by one gather and one copy per tensor,
// when the first row is measured. Otherwise a row allocates nothing.
// For one thread. Never throws: an input that cannot be read has no measure.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/input_sample.h"
#include "tensor/input.h"

namespace modcache::tensor {

// The parts of a row that are read, as runs of elements.
struct SampledPiece {
  std::size_t first = 0;
  std::size_t count = 0;
};
struct SampledPieces {
  static constexpr std::size_t kMost = 16;
  std::array<SampledPiece, kMost> all;
  std::size_t count = 0;
  bool are_apart = false;  // rather than the whole row in pieces

  const SampledPiece* begin() const { return all.data(); }
  const SampledPiece* end() const { return all.data() + count; }
};

class InputSampler final : public cache::InputSource {
 public:
  // Returns whether the CPU can read a tensor's memory here; tests replace it.
  using IsOnHost = bool (*)(const at::Tensor&);
  static bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

  // Keeps the tensors but does not read their values yet. REQUIRES: all can be stored.
  InputSampler(std::vector<at::Tensor> tensors, Per per, IsOnHost on_host = is_on_host);
  // Reads the true part of each row alone. `dims`: the padded dimensions of each tensor. `padding`
  // must outlive this.
  InputSampler(std::vector<at::Tensor> tensors, std::vector<DimSet> dims, const RowPadding& padding,
               IsOnHost on_host = is_on_host);
  ~InputSampler() override;
  InputSampler(const InputSampler&) = delete;
  InputSampler& operator=(const InputSampler&) = delete;

  // Adds the measure of a row to `measured`. Returns false when there is none: no tensor has an
  // element, or reading failed.
  bool measure(std::size_t row, cache::MeasuredInput& measured) const override;
  bool is_costly() const override { return is_costly_; }

 private:
  class Source;

  bool prepare() const;
  bool measure_true_part(std::size_t row, cache::MeasuredInput& measured) const;

  std::vector<at::Tensor> tensors_;
  std::vector<DimSet> dims_;
  const RowPadding* padding_ = nullptr;  // null: rows are read whole
  const Per per_;
  const IsOnHost on_host_;
  bool is_costly_ = false;
  mutable bool is_prepared_ = false;
  mutable std::vector<Source> sources_;  // empty: nothing can be measured
};

}  // namespace modcache::tensor
