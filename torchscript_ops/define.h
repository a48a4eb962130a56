// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/library.h>

#include <utility>

namespace modcache::ops {

// Registers one operator. The schema is conservative: each operator may read and write what others
// do, so TorchScript neither drops, merges, reorders nor folds them.
template <typename Kernel>
void define(torch::Library& m, const char* schema, Kernel&& kernel) {
  m.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE), std::forward<Kernel>(kernel));
}

}  // namespace modcache::ops
