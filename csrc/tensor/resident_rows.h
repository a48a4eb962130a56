// SPDX-License-Identifier: Apache-2.0
//
// Assembles rows that the memory tier holds on a device, on that device.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tensor/row_value.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// Returns the rows in this order, as a module's result for them would be. The tensors belong to the
// caller. They are on the device of the call's input where the result lay beside its input when it
// was computed, otherwise on the host. Returns nothing when the rows lie on several devices or do
// not fit together. REQUIRES: at least one row; all are RowValue::is_on_device().
std::optional<Flat> together_on_device(const std::vector<std::shared_ptr<const RowValue>>& rows,
                                       std::optional<at::Device> input_device);

}  // namespace modcache::tensor
