// SPDX-License-Identifier: Apache-2.0
//
// InputSampler: measures the values of a call's input, whole or row by row, to compare them with
// the input that an entry was computed from (cache/input_sample.h). The measure depends on the
// logical elements alone, not on strides and device. A short row is read whole. A long one is read
// in up to 16 pieces of a cache line each, at offsets that depend on its size alone.
//
// Tensors on an accelerator are read for all rows at once, by one gather and one copy per tensor,
// when the first row is measured, except padded rows, which are read one by one. Otherwise
// measuring a contiguous row allocates no memory. For one thread. Never throws: an input that
// cannot be read has an empty measure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "cache/input_sample.h"
#include "tensor/input.h"

namespace modcache::tensor {

class InputSampler final : public cache::InputSource {
 public:
  // Returns whether the CPU can read a tensor's memory; tests replace it.
  using IsOnHost = bool (*)(const at::Tensor&);
  static bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

  // Does not read the tensors' values yet. They must outlive this. REQUIRES: all can be stored.
  InputSampler(std::span<const at::Tensor> tensors, Per per, IsOnHost on_host = is_on_host);
  // Reads only the valid (unpadded) part of each row. `dims`: the padded dimensions of each tensor.
  // `padding` must outlive this.
  InputSampler(std::span<const at::Tensor> tensors, std::vector<DimSet> dims,
               const RowPadding& padding, IsOnHost on_host = is_on_host);
  ~InputSampler() override;
  InputSampler(const InputSampler&) = delete;
  InputSampler& operator=(const InputSampler&) = delete;

  cache::MeasuredInput measure(std::size_t row) const override;
  bool is_costly() const override { return is_costly_; }

 private:
  class SampledTensor;

  std::vector<SampledTensor> sampled(std::span<const at::Tensor> tensors) const;
  std::vector<at::Tensor> valid_part(std::size_t row) const;

  const std::span<const at::Tensor> tensors_;
  std::vector<DimSet> dims_;
  const RowPadding* padding_ = nullptr;  // null: rows are read whole
  const Per per_;
  const IsOnHost on_host_;
  bool is_costly_ = false;
  mutable bool is_prepared_ = false;
  mutable std::vector<SampledTensor> sampled_;  // empty: nothing can be measured
};

}  // namespace modcache::tensor
