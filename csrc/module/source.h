// SPDX-License-Identifier: Apache-2.0
//
// The code of a TorchScript method and of everything it can reach, in a form that is the same
// when the module is compiled, saved, loaded, and loaded again: printed source (code_text.h), with
// the numbers that torch appends to repeated names of classes (___torch_mangle_7) replaced by the
// order of appearance.
#pragma once

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/hash.h"
#include "module/class_names.h"

namespace modcache::module {

struct ReachedAttributes {
  std::set<std::string> read;
  std::set<std::string> written;
};

struct Source {
  Digest128 digest;  // of the code, with the values of its constants
  // Of each function alone, by its name without mangling: for people, who want to know what
  // changed.
  std::map<std::string, Digest128> functions;
  // What the code reads and writes, by the class that has it.
  std::map<c10::ClassTypePtr, ReachedAttributes> attributes;
  // The classes whose methods it reaches, numbered in the order in which it does. The digest has
  // methods under these numbers; objects are to be written down with the numbers of their classes.
  std::map<c10::ClassTypePtr, std::uint64_t> classes;
  NameStabilizer names;  // knows the names that the text of the code contains
  // Set when a constant of the code cannot be hashed: "a tensor that is quantized", ...
  std::string why_not_hashable;
  // The code calls through an interface: which classes it reaches depends on the submodules that
  // lie there now.
  bool has_interfaces = false;

  // How the text of the code names a class (isinstance, construction); empty when it does not.
  std::string name_in_code(const c10::ClassType& type) const;
};

// REQUIRES: the module has `method`. Costs about as much as saving the module's code.
Source read_source(const c10::intrusive_ptr<c10::ivalue::Object>& module,
                   const std::string& method);

}  // namespace modcache::module
