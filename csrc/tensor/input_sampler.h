// SPDX-License-Identifier: Apache-2.0
//
// InputSampler: measures the values of a call's input, whole or row by row, for the comparison with
// what an entry keeps of its own (cache/input_sample.h). It reads logical elements: strides and the
// device do not count. Of a long row it reads up to 16 pieces of a cache line each, at places that
// the shape alone determines; a short one whole.
//
// Tensors on an accelerator are read at once for all rows, by one gather and one copy for each
// tensor, when the first row is measured. Nothing is allocated for a row.
// Used by one thread. Never throws: what cannot be read gives no measure.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/input_sample.h"
#include "tensor/input.h"

namespace modcache::tensor {

// What of a row is read: runs of elements.
struct SampledPiece {
  std::size_t first = 0;
  std::size_t count = 0;
};
struct SampledPieces {
  static constexpr std::size_t kMost = 16;
  std::array<SampledPiece, kMost> all;
  std::size_t count = 0;

  const SampledPiece* begin() const { return all.data(); }
  const SampledPiece* end() const { return all.data() + count; }
};

class InputSampler final : public cache::InputSource {
 public:
  // Whether a tensor's memory can be read here.
  using IsOnHost = bool (*)(const at::Tensor&);
  static bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

  // Keeps the tensors, and looks at none of their values. REQUIRES: all are storable.
  InputSampler(std::vector<at::Tensor> tensors, Per per, IsOnHost on_host = is_on_host);
  ~InputSampler() override;
  InputSampler(const InputSampler&) = delete;
  InputSampler& operator=(const InputSampler&) = delete;

  // False also where there is no tensor, or none has an element.
  bool measure(std::size_t row, cache::MeasuredInput& measured) const override;
  bool is_costly() const override { return is_costly_; }

 private:
  class Source;

  bool prepare() const;

  std::vector<at::Tensor> tensors_;
  const Per per_;
  const IsOnHost on_host_;
  bool is_costly_ = false;
  mutable bool is_prepared_ = false;
  mutable std::vector<Source> sources_;  // empty: nothing can be measured
};

}  // namespace modcache::tensor
