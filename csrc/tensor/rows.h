// SPDX-License-Identifier: Apache-2.0
//
// Selects rows from the tensors of a batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace modcache::tensor
