// SPDX-License-Identifier: Apache-2.0
//
// Reading the nodes of TorchScript's graphs.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace modcache::module {

// The attribute or method that `node` names. REQUIRES: a GetAttr, a SetAttr or a CallMethod.
// The symbol is looked up by its text, since any release of torch may change the number behind
// c10::attr::name, and that number would be compiled in.
inline const std::string& name_of(const torch::jit::Node& node) {
  static const c10::Symbol symbol = c10::Symbol::attr("name");
  return node.s(symbol);
}

}  // namespace modcache::module
