// SPDX-License-Identifier: Apache-2.0
//
// The part of modcache.h that needs no TorchScript: mode, settings, counters and entries.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace modcache {

// Returns whether some copy of libmodcache.so is loaded in this process.
inline bool is_loaded() {
  return c10::Dispatcher::singleton().findSchema({"cache::lookup_or_run", ""}).has_value();
}

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

// Returns the operator's result; None when it returns nothing.
template <typename... Arguments>
c10::IValue call_operator(const c10::OperatorHandle& op, Arguments&&... arguments) {
  c10::Stack stack;
  stack.reserve(sizeof...(arguments));
  (stack.emplace_back(std::forward<Arguments>(arguments)), ...);
  op.callBoxed(&stack);
  return stack.empty() ? c10::IValue() : std::move(stack.front());
}

// `name` is a lambda. Its type differs at each call site, so each call site looks its operator up
// once.
template <typename Name, typename... Arguments>
c10::IValue call(Name name, Arguments&&... arguments) {
  static const c10::OperatorHandle op = find(name(), "");
  return call_operator(op, std::forward<Arguments>(arguments)...);
}

inline c10::Dict<std::string, std::string> dict_of(
    const std::map<std::string, std::string>& options) {
  c10::Dict<std::string, std::string> dict;
  for (const auto& [name, value] : options) dict.insert(name, value);
  return dict;
}

template <typename Value>
std::map<std::string, Value> map_of(const c10::IValue& dict) {
  std::map<std::string, Value> map;
  for (const auto& entry : dict.toGenericDict()) {
    map.emplace(entry.key().toStringRef(), entry.value().to<Value>());
  }
  return map;
}

}  // namespace detail

// A cache of its own, with its own settings, memory, server and counters; the functions below and
// lookup_or_run use it inside of a CacheGuard. Copies are the same cache. It lives as long as a
// copy, or a call that uses it.
class Cache {
 public:
  // `options`: as for configure(); others have their defaults. Throws where one is wrong.
  explicit Cache(const std::map<std::string, std::string>& options)
      : held_(detail::call([] { return "cache::_make_cache"; }, detail::dict_of(options))) {}

 private:
  friend class CacheGuard;
  c10::IValue held_;
};

// While it lives, calls of this thread use `cache`. Guards nest; each is destroyed by the thread
// that made it, in the reverse order, as scopes do.
class [[nodiscard]] CacheGuard {
 public:
  explicit CacheGuard(const Cache& cache) : previous_(enter(cache.held_)) {}
  ~CacheGuard() { enter(previous_); }
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;

 private:
  static c10::IValue enter(const c10::IValue& cache) {
    return detail::call([] { return "cache::_enter_cache"; }, cache);
  }

  const c10::IValue previous_;
};

// Sets the process's mode, which the next call of every thread sees: off, read, on, refresh,
// verify.
inline void set_mode(const std::string& mode) {
  detail::call([] { return "cache::set_mode"; }, mode);
}

inline std::string mode() {  // the effective mode of process, thread and directory together
  return detail::call([] { return "cache::mode"; }).toStringRef();
}

// Combines the thread's mode with `mode` during its lifetime: the combination allows what both
// allow. Guards nest; each ends in the thread that made it, last in, first out.
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

// Sets options: {{"dir", "cache"}, {"memory", "2GB"}}. After an error none of them is set.
inline void configure(const std::map<std::string, std::string>& options) {
  detail::call([] { return "cache::configure"; }, detail::dict_of(options));
}

inline std::map<std::string, std::string> settings() {
  return detail::map_of<std::string>(detail::call([] { return "cache::settings"; }));
}

// Returns counters by name: this process's hits_memory, misses, stored, ...; the directory's
// entries_disk, ...
inline std::map<std::string, std::int64_t> stats() {
  return detail::map_of<std::int64_t>(detail::call([] { return "cache::stats"; }));
}

inline void reset_stats() {
  detail::call([] { return "cache::reset_stats"; });
}

// Returns what this process counted as text for Prometheus: counters and histograms, which only
// grow while the process lives (reset_stats() leaves them alone).
inline std::string metrics() {
  return detail::call([] { return "cache::metrics"; }).toStringRef();
}

// Returns how many bytes the values of each scope take in the directory or pack. Reads the whole
// index, which takes about a second for each million entries. Empty where nothing can be read, and
// in mode off.
inline std::map<std::string, std::int64_t> bytes_by_scope() {
  return detail::map_of<std::int64_t>(detail::call([] { return "cache::bytes_by_scope"; }));
}

// Returns once everything that was stored before survives a crash and a power loss.
inline void flush() {
  detail::call([] { return "cache::flush"; });
}

// Returns whether there is a whole output of `forward` under this scope and key.
inline bool contains(const std::string& scope, const std::string& key) {
  return detail::call([] { return "cache::contains"; }, scope, key).toBool();
}

// Removes the entries of a scope ("": of all) whose keys have the prefix, and returns their number.
// `tier` is memory, disk or all.
inline std::int64_t clear(const std::string& scope = "", const std::string& prefix = "",
                          const std::string& tier = "all") {
  return detail::call([] { return "cache::clear"; }, scope, prefix, tier).toInt();
}

}  // namespace modcache
