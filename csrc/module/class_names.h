// SPDX-License-Identifier: Apache-2.0
//
// Names of TorchScript classes and functions without what torch appends to repeated ones
// (___torch_mangle_7), which differs from process to process and from load to load.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>

namespace modcache::module {

// "B": for messages.
std::string class_name_of(const c10::ivalue::Object& module);

// "__torch__.a.___torch_mangle_7.B" -> "__torch__.a.B"
std::string without_mangling(const std::string& name);

// "__torch__.a.___torch_mangle_7.B" -> "__torch__.a.B#0", with the same number for the same name
// throughout, in the order of appearance among names that differ only in their mangling.
class NameStabilizer {
 public:
  // Every name in `text` replaced.
  std::string stabilize(const std::string& text);

  // What `name` was replaced by; empty when no text so far contained it.
  std::string known(const std::string& name) const;

 private:
  const std::string& stable_name(const std::string& name);

  std::unordered_map<std::string, std::string> stable_;
  std::unordered_map<std::string, int> count_;
};

}  // namespace modcache::module
