// SPDX-License-Identifier: Apache-2.0
//
// Which tensors a tier can hold, and as what bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "cache/settings.h"

namespace modcache::tensor {

// Makes ordinary tensors inside whatever mode the caller is in: no inference tensors, no graph.
struct OrdinaryTensors {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
};

// Why no tier can hold `tensor` (sparse, quantized, nested, a functorch or fake wrapper, a
// subclass, no data); null when one can. The text completes "a result that is ...".
const char* why_not_storable(const at::Tensor& tensor);

// Whether a stored tensor may have this dtype.
bool is_storable_dtype(at::ScalarType type);

// The same bits as numbers that torch can copy, compare and index: it has few operators for float8,
// the unsigned and the sub-byte dtypes. Shares memory, unless a conjugation has to be carried out.
at::Tensor as_operable(const at::Tensor& tensor);

// An ordinary contiguous copy on the CPU. Floating numbers wider than `dtype` are narrowed to it,
// unless one of them would become infinite.
// REQUIRES: why_not_storable(tensor) == nullptr.
at::Tensor copy_to_store(const at::Tensor& tensor, cache::StoredDtype dtype);

}  // namespace modcache::tensor
