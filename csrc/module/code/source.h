// SPDX-License-Identifier: Apache-2.0
//
// The code of a TorchScript method and of everything it can reach, in a form that is the same when
// the module is compiled, saved, loaded, and loaded again: printed source (code_text.h), with the
// numbers that torch appends to repeated names of classes (___torch_mangle_7) replaced by the order
// of appearance.
#pragma once

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/hash.h"
#include "module/code/class_names.h"

namespace modcache::module {

struct ReachedAttributes {
  std::set<std::string> read;
  std::set<std::string> written;
};

struct Source {
  Digest128 digest;  // of the code, with the values of its constants
  // The digest of each function, by its name without mangling, to tell people which ones changed.
  std::map<std::string, Digest128> functions;
  // The attributes that the code reads and writes, by the class that has them.
  std::map<c10::ClassTypePtr, ReachedAttributes> attributes;
  // The classes whose methods the code reaches, numbered in the order in which it does. The digest
  // refers to methods by these numbers; objects must be serialized with the numbers of their
  // classes.
  std::map<c10::ClassTypePtr, std::uint64_t> classes;
  NameStabilizer names;  // knows the names that the text of the code contains
  // Set when a constant of the code cannot be hashed: "a tensor that is quantized", ...
  std::string why_not_hashable;
  // The code calls through an interface, so the classes that it reaches depend on the current
  // submodules.
  bool has_interfaces = false;

  // Returns the name of a class in the text of the code (isinstance, construction); empty when it
  // is not there.
  std::string name_in_code(const c10::ClassType& type) const;
};

// Reads the code. REQUIRES: the module has `method`. Costs about as much as saving the module's
// code.
Source read_source(const c10::intrusive_ptr<c10::ivalue::Object>& module,
                   const std::string& method);

}  // namespace modcache::module
