// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include "module/call/declared.h"

namespace modcache::ops {

// Rows as an operator returns them: together, or as a list.
at::IValue value_of(module::Rows rows);

}  // namespace modcache::ops
