// SPDX-License-Identifier: Apache-2.0
//
// The operators of namespace `cache`, called as a C++ host that knows their schemas calls them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace modcache::testing {

// Arguments with their defaults, too: the boxed call knows none.
inline at::IValue call_operator(const std::string& name, std::vector<at::IValue> arguments) {
  const std::string full_name = "cache::" + name;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(full_name.c_str(), "");
  torch::jit::Stack stack(std::move(arguments));
  op.callBoxed(stack);
  return stack.empty() ? at::IValue() : stack.back();
}

inline void configure(const std::map<std::string, std::string>& options) {
  c10::Dict<std::string, std::string> dict;
  for (const auto& [name, value] : options) dict.insert(name, value);
  call_operator("configure", {dict});
}

// The counters that are not zero, without times and sizes.
inline std::map<std::string, std::int64_t> counters() {
  std::map<std::string, std::int64_t> counted;
  for (const auto& item : call_operator("stats", {}).toGenericDict()) {
    const std::string& name = item.key().toStringRef();
    const bool is_size = name.rfind("entries", 0) == 0 || name.rfind("bytes", 0) == 0;
    const bool is_time = name.size() > 3 && name.compare(name.size() - 3, 3, "_us") == 0;
    const std::int64_t count = item.value().toInt();
    if (!is_size && !is_time && count != 0) counted[name] = count;
  }
  return counted;
}

}  // namespace modcache::testing
