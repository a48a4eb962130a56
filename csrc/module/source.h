// SPDX-License-Identifier: Apache-2.0
//
// The code of a TorchScript method and of everything it can reach, in a form that is the same
// when the module is compiled, saved, loaded, and loaded again: printed source, with the numbers
// that torch appends to repeated names (___torch_mangle_7) replaced by the order of appearance.
#pragma once

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>

#include <map>
#include <set>
#include <string>

#include "base/hash.h"

namespace modcache::module {

struct ReachedAttributes {
  std::set<std::string> read;
  std::set<std::string> written;
};

struct Source {
  Digest128 digest;  // of the code, with the values of its constants
  // What the code reads and writes, by the class that has it.
  std::map<c10::ClassTypePtr, ReachedAttributes> attributes;
  // Set when a constant of the code cannot be hashed: "a tensor that is quantized", ...
  std::string why_not_hashable;
  // The code calls through an interface: which classes it reaches depends on the submodules that
  // lie there now.
  bool has_interfaces = false;
};

// REQUIRES: the module has `method`. Costs about as much as saving the module's code.
Source read_source(const c10::intrusive_ptr<c10::ivalue::Object>& module,
                   const std::string& method);

}  // namespace modcache::module
