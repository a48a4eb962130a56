// SPDX-License-Identifier: Apache-2.0
//
// The value that a tier holds as tensors of the caller's own, for callers that need not know
// whether it is a whole value or a row.
#pragma once

#include "cache/value.h"
#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

struct StoredValue {
  LayoutPtr layout;
  Flat value;  // on the CPU
};

// REQUIRES: `value` is a WholeValue or a RowValue.
StoredValue stored_value(const cache::Value& value);

}  // namespace modcache::tensor
