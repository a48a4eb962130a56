// SPDX-License-Identifier: Apache-2.0
//
// The code of a TorchScript method and of everything it can reach, in a form that is the same when
// the module is compiled, saved, loaded, and loaded again: printed source, with the
// numbers that torch appends to repeated names of classes (___torch_mangle_7) replaced by the order
// of appearance.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/python_print.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"

namespace modcache::module {

// Returns the last part of the class's name, "B", for messages.
std::string class_name_of(const c10::ivalue::Object& module);

// Returns the name without the suffix that torch appends to repeated names (___torch_mangle_7),
// which differs from process to process and from load to load.
// "__torch__.a.___torch_mangle_7.B" -> "__torch__.a.B"
std::string without_mangling(const std::string& name);

// "__torch__.a.___torch_mangle_7.B" -> "__torch__.a.B#0". Equal names get equal numbers. Names that
// differ only in their mangling are numbered in the order of appearance.
class NameStabilizer {
 public:
  // Returns `text` with every name replaced.
  std::string stabilize(const std::string& text);

  // Returns the replacement of `name`; empty when no text so far contained it.
  std::string known(const std::string& name) const;

 private:
  const std::string& stable_name(const std::string& name);

  std::unordered_map<std::string, std::string> stable_;
  std::unordered_map<std::string, int> count_;
};

// A TorchScript method as text that does not depend on the names of its variables: torch numbers
// repeated names anew each time it saves a module, so `input0` of a compiled module may be `input2`
// of the same module loaded.
// Returns the source of `function`, with the variables of each name numbered in the order of
// appearance: x, x0, x1. Arguments keep their names. Constants that are not literals are appended
// to `constants`, and the text has their index there; types that the text names are added to
// `dependencies`.
std::string text_of(const torch::jit::GraphFunction& function, std::vector<at::IValue>& constants,
                    torch::jit::PrintDepsTable& dependencies);

// A module that Python cached (modcache.cached) is scripted with two methods: a forward that calls
// the operator, and its own forward under the name below. Entries and fingerprints use one name for
// both, so that the cached module shares them with the wrapped one.
inline constexpr char kPlainForward[] = "_modcache_forward";

// Returns the name of a method in entries and fingerprints.
inline std::string counted_name(const std::string& method) {
  return method == kPlainForward ? "forward" : method;
}

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
