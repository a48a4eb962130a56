// SPDX-License-Identifier: Apache-2.0
//
// modcache for C++ hosts that call the cache themselves. A host that only runs models which call
// cache::lookup_or_run needs nothing of this.
//
//     torch::jit::Module encoder = torch::jit::load("encoder.pt");
//     at::Tensor features = modcache::lookup_or_run(encoder, image, "train/000017.jpg");
//
// Headers only: every function calls an operator in torch's dispatcher. So the host may link
// modcache::modcache, dlopen the library (RTLD_LOCAL too, any time before the first call) or get
// it by LD_PRELOAD, and the library may be newer than this header.
//
// Any thread. A caller's mistake, and a call while the library is not loaded, is a c10::Error that
// says what is valid. What the module throws passes through. No failure of the cache is an error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace modcache {

// Whether some copy of libmodcache.so is loaded in this process.
inline bool is_loaded() {
  return c10::Dispatcher::singleton().findSchema({"cache::lookup_or_run", ""}).has_value();
}

// One key names the whole output; a list of them, or int64 ids [B], one row each. Keys are not
// empty and valid UTF-8; id 7 and key "7" are the same key.
struct Keys {
  Keys(const char* key) : Keys(std::string(key)) {}
  Keys(std::string key) : overload(0), value(std::move(key)) {}
  Keys(const std::vector<std::string>& keys) : overload(1), value(keys) {}
  Keys(at::Tensor ids) : overload(2), value(std::move(ids)) {}

  std::size_t overload;
  c10::IValue value;
};

struct CallOptions {
  // A name for the module, "clip-vit-b32@3", that the host answers for. Empty: its fingerprint.
  std::string scope = "";
  std::string method = "forward";
};

namespace detail {

inline c10::OperatorHandle find(const char* name, const char* overload) {
  auto found = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK(
      found.has_value() || is_loaded(), "modcache: ", name,
      " was called, but libmodcache.so is not loaded in this process. Link the CMake target "
      "modcache::modcache, dlopen(\"libmodcache.so\", RTLD_NOW) before the first call, or "
      "start the process with LD_PRELOAD=libmodcache.so");
  TORCH_CHECK(found.has_value(), "modcache: the libmodcache.so of this process has no ", name,
              "; it is older than modcache.h, so install both from one version");
  return *found;
}

// What the operator returned; none where it returns nothing.
template <typename... Arguments>
c10::IValue call_operator(const c10::OperatorHandle& op, Arguments&&... arguments) {
  torch::jit::Stack stack;
  (stack.emplace_back(std::forward<Arguments>(arguments)), ...);
  op.callBoxed(&stack);
  return stack.empty() ? c10::IValue() : std::move(stack.front());
}

// `name` is a lambda, whose type is another one in each place: so each looks its operator up once.
template <typename Name, typename... Arguments>
c10::IValue call(Name name, Arguments&&... arguments) {
  static const c10::OperatorHandle op = find(name(), "");
  return call_operator(op, std::forward<Arguments>(arguments)...);
}

template <typename Value>
std::map<std::string, Value> map_of(const c10::IValue& dict) {
  std::map<std::string, Value> map;
  for (const auto& entry : dict.toGenericDict()) {
    map.emplace(entry.key().toStringRef(), entry.value().to<Value>());
  }
  return map;
}

template <typename Name>
c10::IValue lookup(Name name, const torch::jit::Module& module, c10::IValue input, const Keys& keys,
                   const CallOptions& options) {
  static const c10::OperatorHandle ops[] = {find(name(), ""), find(name(), "keys"),
                                            find(name(), "ids")};
  return call_operator(ops[keys.overload], module._ivalue(), std::move(input), keys.value,
                       options.scope, options.method);
}

}  // namespace detail

// The method's output for `input`: from the cache, or by running it. `input` is a Tensor, or a
// tuple (c10::ivalue::Tuple::create; its items become the method's arguments), list or dict of
// tensors and plain values. The output is the caller's own: writing into it changes no later hit.
// REQUIRES: the method returns a Tensor; else lookup_or_run_any.
inline at::Tensor lookup_or_run(const torch::jit::Module& module, c10::IValue input,
                                const Keys& keys, const CallOptions& options = {}) {
  constexpr auto name = [] { return "cache::lookup_or_run"; };
  return detail::lookup(name, module, std::move(input), keys, options).toTensor();
}

// The same for any nesting of tensors and plain values.
inline c10::IValue lookup_or_run_any(const torch::jit::Module& module, c10::IValue input,
                                     const Keys& keys, const CallOptions& options = {}) {
  constexpr auto name = [] { return "cache::lookup_or_run_any"; };
  return detail::lookup(name, module, std::move(input), keys, options);
}

// A lowered and frozen copy of a module in eval mode, with all its methods: what torch::jit::freeze
// gives, cached calls too. It hits what `module` stored.
inline torch::jit::Module freeze(const torch::jit::Module& module) {
  c10::List<std::string> methods;
  for (const auto& method : module.get_methods()) {
    const std::string& method_name = method.name();
    const bool is_special = method_name.rfind("__", 0) == 0;
    if (method_name != "forward" && !is_special) methods.push_back(method_name);
  }
  constexpr auto name = [] { return "cache::_freeze"; };
  return detail::call(name, module._ivalue(), methods, /*optimize_numerics=*/true).toModule();
}

// Who the module is: the scope where none is given.
inline std::string fingerprint(const torch::jit::Module& module,
                               const std::string& method = "forward") {
  return detail::call([] { return "cache::fingerprint"; }, module._ivalue(), method).toStringRef();
}

// The process's mode, seen by the next call of every thread: off, read, on, refresh, verify.
inline void set_mode(const std::string& mode) {
  detail::call([] { return "cache::set_mode"; }, mode);
}

inline std::string mode() {  // what process, thread and directory leave
  return detail::call([] { return "cache::mode"; }).toStringRef();
}

// While it lives, the thread's mode is combined with `mode`: what either lacks is lacking. Guards
// nest; they end in the thread that made them, last in, first out.
class [[nodiscard]] ModeGuard {
 public:
  explicit ModeGuard(const std::string& mode)
      : previous_(detail::call([] { return "cache::_enter_mode"; }, mode).toInt()) {}
  ~ModeGuard() {
    detail::call([] { return "cache::_leave_mode"; }, previous_);
  }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  const std::int64_t previous_;
};

// {{"dir", "cache"}, {"memory", "2GB"}}: all of them, or an error and none.
inline void configure(const std::map<std::string, std::string>& options) {
  c10::Dict<std::string, std::string> dict;
  for (const auto& [name, value] : options) dict.insert(name, value);
  detail::call([] { return "cache::configure"; }, std::move(dict));
}

inline std::map<std::string, std::string> settings() {
  return detail::map_of<std::string>(detail::call([] { return "cache::settings"; }));
}

// By name: this process's hits_memory, misses, stored, ...; the directory's entries_disk, ...
inline std::map<std::string, std::int64_t> stats() {
  return detail::map_of<std::int64_t>(detail::call([] { return "cache::stats"; }));
}

inline void reset_stats() {
  detail::call([] { return "cache::reset_stats"; });
}

// What was stored before is safe afterwards, also from power loss.
inline void flush() {
  detail::call([] { return "cache::flush"; });
}

// Whether there is a whole output of `forward` under this scope and key.
inline bool contains(const std::string& scope, const std::string& key) {
  return detail::call([] { return "cache::contains"; }, scope, key).toBool();
}

// Drops entries of a scope ("": of all) whose key has the prefix, and returns how many. `tier` is
// memory, disk or all.
inline std::int64_t clear(const std::string& scope = "", const std::string& prefix = "",
                          const std::string& tier = "all") {
  return detail::call([] { return "cache::clear"; }, scope, prefix, tier).toInt();
}

}  // namespace modcache
