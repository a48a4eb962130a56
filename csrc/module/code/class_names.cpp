// SPDX-License-Identifier: Apache-2.0
#include "module/code/class_names.h"

#include <ATen/core/class_type.h>

namespace modcache::module {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

}  // namespace

std::string class_name_of(const c10::ivalue::Object& module) {
  return module.type()->name().has_value() ? module.type()->name()->name() : "module";
}

std::string without_mangling(const std::string& name) {
  static const std::string kMangle = "___torch_mangle_";
  std::string out = name;
  for (auto at = out.find(kMangle); at != std::string::npos; at = out.find(kMangle, at)) {
    std::size_t end = at + kMangle.size();
    while (end < out.size() && out[end] >= '0' && out[end] <= '9') ++end;
    if (end < out.size() && out[end] == '.') ++end;
    out.erase(at, end - at);
  }
  return out;
}

std::string NameStabilizer::stabilize(const std::string& text) {
  static const std::string kRoot = "__torch__";
  std::string out;
  out.reserve(text.size());
  std::size_t position = 0;
  while (true) {
    const std::size_t start = text.find(kRoot, position);
    if (start == std::string::npos) break;
    std::size_t end = start;
    while (end < text.size() && is_name_char(text[end])) ++end;
    out.append(text, position, start - position);
    out += stable_name(text.substr(start, end - start));
    position = end;
  }
  out.append(text, position, std::string::npos);
  return out;
}

std::string NameStabilizer::known(const std::string& name) const {
  const auto found = stable_.find(name);
  return found != stable_.end() ? found->second : std::string();
}

const std::string& NameStabilizer::stable_name(const std::string& name) {
  auto [known, is_new] = stable_.try_emplace(name);
  if (is_new) {
    const std::string base = without_mangling(name);
    known->second = base + '#' + std::to_string(count_[base]++);
  }
  return known->second;
}

}  // namespace modcache::module
