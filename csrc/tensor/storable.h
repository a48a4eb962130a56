// SPDX-License-Identifier: Apache-2.0
//
// Decides which tensors a tier can hold, and as what bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "cache/settings.h"

namespace modcache::tensor {

// Creates no inference tensors whatever mode the caller is in. It is enough where no operator is
// called.
class NoInferenceTensors {
 public:
  // A guard costs as much as a small copy, so there is none where inference mode is off already.
  NoInferenceTensors() {
    if (c10::InferenceMode::is_enabled()) no_inference_.emplace(false);
  }
  NoInferenceTensors(const NoInferenceTensors&) = delete;
  NoInferenceTensors& operator=(const NoInferenceTensors&) = delete;

 private:
  std::optional<c10::InferenceMode> no_inference_;
};

// Creates ordinary tensors whatever mode the caller is in: no inference tensors, no graph.
class OrdinaryTensors {
 public:
  OrdinaryTensors() = default;

 private:
  NoInferenceTensors no_inference_;
  at::NoGradGuard no_grad_;
};

// Returns why no tier can hold `tensor` (sparse, quantized, nested, a functorch or fake wrapper, a
// subclass, no data); null when one can. The text completes "a result that is ...".
const char* why_not_storable(const at::Tensor& tensor);

// Returns whether the memory of a dense tensor is its elements in order.
bool has_plain_memory(const at::Tensor& tensor);

// Returns whether a stored tensor may have this dtype.
bool is_storable_dtype(at::ScalarType type);

// Returns the same bits in a dtype that torch can copy, compare and index: it has few operators for
// float8, the unsigned and the sub-byte dtypes. Shares memory, unless a lazy conjugation has to be
// carried out.
at::Tensor as_operable(const at::Tensor& tensor);

// Returns a copy of any dtype with the same strides. Autograd follows it.
at::Tensor copy_of(const at::Tensor& tensor);

// Returns an ordinary contiguous copy on the CPU. Narrows floating-point numbers that are wider
// than `dtype`, unless one of them would become infinite. REQUIRES: why_not_storable(tensor) ==
// nullptr.
at::Tensor copy_to_store(const at::Tensor& tensor, cache::StoredDtype dtype);

}  // namespace modcache::tensor
