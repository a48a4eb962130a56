// SPDX-License-Identifier: Apache-2.0
//
// Names of TorchScript classes and functions without the suffix that torch appends to repeated ones
// (___torch_mangle_7), which differs from process to process and from load to load.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>

namespace modcache::module {

// The class's last name, "B", for messages.
std::string class_name_of(const c10::ivalue::Object& module);

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

}  // namespace modcache::module
