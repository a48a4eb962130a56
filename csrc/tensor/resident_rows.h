// SPDX-License-Identifier: Apache-2.0
//
// Rows that the memory tier holds on a device, put together there.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tensor/row_value.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// The rows in this order, as a module's result for them would be: tensors of the caller's own, on
// the device of the call's input where they lay beside it when they were computed, otherwise on the
// host. Nothing where they lie on several devices or do not fit together.
// REQUIRES: at least one row; all are RowValue::is_on_device().
std::optional<Flat> together_on_device(const std::vector<std::shared_ptr<const RowValue>>& rows,
                                       std::optional<at::Device> input_device);

}  // namespace modcache::tensor
