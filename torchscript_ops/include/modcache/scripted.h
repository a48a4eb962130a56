// SPDX-License-Identifier: Apache-2.0
//
// The part of modcache.h that takes TorchScript modules. A library that was built without
// TorchScript (MODCACHE_WITH_TORCHSCRIPT=OFF) answers each of these with a c10::Error that says so.
#pragma once

#include <modcache/cache.h>
#include <torch/csrc/jit/api/module.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace modcache {

// One key for the whole output, or one per row: a list of keys, or int64 ids [B]. Keys are valid
// UTF-8 and not empty; id 7 and key "7" are the same key.
struct Keys {
  Keys(const char* key) : Keys(std::string(key)) {}
  Keys(std::string key) : overload(0), value(std::move(key)) {}
  Keys(const std::vector<std::string>& keys) : overload(1), value(keys) {}
  Keys(at::Tensor ids) : overload(2), value(std::move(ids)) {}

  std::size_t overload;
  c10::IValue value;
};

struct CallOptions {
  // A name for the module, "clip-vit-b32@3", for which the host is responsible. Empty: its
  // fingerprint.
  std::string scope = "";
  std::string method = "forward";
  // For one key per row, where rows of their own length were padded to one: [rows, longest], not 0
  // where a row is true. Undefined: rows are whole.
  at::Tensor mask = {};
  double pad_value = 0;  // follows the true part of each row of the result
};

namespace detail {

// Returns a text as an argument. The usual values are shared, and never destroyed, as threads may
// call while the process exits.
inline c10::IValue text_argument(const std::string& text) {
  static const auto& empty = *new c10::IValue("");
  static const auto& forward = *new c10::IValue("forward");
  if (text.empty()) return empty;
  return text == "forward" ? forward : c10::IValue(text);
}

template <typename Name>
c10::IValue lookup(Name name, const torch::jit::Module& module, c10::IValue input, const Keys& keys,
                   const CallOptions& options) {
  if (options.mask.defined()) {
    TORCH_CHECK_VALUE(keys.overload != 0, name(), ": a mask is for one key per row");
    static const c10::OperatorHandle padded[] = {find(name(), "keys_mask"),
                                                 find(name(), "ids_mask")};
    return call_operator(padded[keys.overload - 1], module._ivalue(), std::move(input), keys.value,
                         options.mask, options.pad_value, text_argument(options.scope),
                         text_argument(options.method));
  }
  static const c10::OperatorHandle ops[] = {find(name(), ""), find(name(), "keys"),
                                            find(name(), "ids")};
  return call_operator(ops[keys.overload], module._ivalue(), std::move(input), keys.value,
                       text_argument(options.scope), text_argument(options.method));
}

}  // namespace detail

// Returns the method's output for `input`, from the cache or by running it. `input` is a Tensor, or
// a tuple (c10::ivalue::Tuple::create; its items become the method's arguments), list or dict of
// tensors and plain values. The output is the caller's own: writing into it changes no later hit.
// REQUIRES: the method returns a Tensor; otherwise call lookup_or_run_any.
inline at::Tensor lookup_or_run(const torch::jit::Module& module, c10::IValue input,
                                const Keys& keys, const CallOptions& options = {}) {
  constexpr auto name = [] { return "cache::lookup_or_run"; };
  return detail::lookup(name, module, std::move(input), keys, options).toTensor();
}

// Does the same for any nesting of tensors and plain values.
inline c10::IValue lookup_or_run_any(const torch::jit::Module& module, c10::IValue input,
                                     const Keys& keys, const CallOptions& options = {}) {
  constexpr auto name = [] { return "cache::lookup_or_run_any"; };
  return detail::lookup(name, module, std::move(input), keys, options);
}

// Returns a lowered and frozen copy of a module in eval mode, with all its methods, as
// torch::jit::freeze does, but with working cached calls. It hits what `module` stored.
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

// Returns the module's fingerprint, which is the scope of calls that give none.
inline std::string fingerprint(const torch::jit::Module& module,
                               const std::string& method = "forward") {
  return detail::call([] { return "cache::fingerprint"; }, module._ivalue(), method).toStringRef();
}

}  // namespace modcache
