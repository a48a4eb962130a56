// SPDX-License-Identifier: Apache-2.0
//
// cache::lower, freezing, and the operators that lowered graphs consist of (module/lowering.h).
// Graphs are saved with models: the same rules of change as for the public schemas.
#pragma once

#include <torch/library.h>

namespace modcache::ops {

void define_lower(torch::Library& library);

}  // namespace modcache::ops
