// SPDX-License-Identifier: Apache-2.0
//
// Reads the nodes of TorchScript's graphs.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace modcache::module {

// Returns the name of the attribute or method that `node` accesses. REQUIRES: a GetAttr, a SetAttr
// or a CallMethod. The symbol is looked up by its text, since the number behind c10::attr::name
// would be compiled in, and any release of torch may change it.
inline const std::string& name_of(const torch::jit::Node& node) {
  static const c10::Symbol symbol = c10::Symbol::attr("name");
  return node.s(symbol);
}

}  // namespace modcache::module
