// SPDX-License-Identifier: Apache-2.0
//
// Operators for Python's explain() and for the manifests that eager modules leave; none is public.
#pragma once

#include <torch/library.h>

namespace modcache::ops {

void define_explain(torch::Library& m);

}  // namespace modcache::ops
