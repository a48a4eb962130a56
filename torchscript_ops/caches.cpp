// SPDX-License-Identifier: Apache-2.0
//
// Caches beside the default one, and which of them the calls of a thread use.
#include <ATen/core/Dict.h>
#include <torch/custom_class.h>

#include <optional>
#include <string>

#include "arguments.h"
#include "module/call/current_cache.h"
#include "registration.h"

namespace modcache::ops {
namespace {

using module::HeldCache;
using HeldPtr = c10::intrusive_ptr<HeldCache>;

HeldPtr make_held(const c10::Dict<std::string, std::string>& options) {
  auto made = cache::make_cache(given_options(options));
  check_ok("modcache.Cache", made.status());
  return c10::make_intrusive<HeldCache>(std::move(made).value());
}

// None: the default.
cache::CachePtr cache_of(const std::optional<HeldPtr>& held) {
  return held.has_value() ? (*held)->cache : nullptr;
}

// For Python's tasks: `is_of_several_tasks` says that the thread has others, which differ. A static
// method, since an operator that is given an object costs ten times as much.
void use(const std::optional<HeldPtr>& cache, bool is_of_several_tasks) {
  module::set_thread_cache({cache_of(cache), is_of_several_tasks});
}

// For hosts: returns the cache before.
std::optional<HeldPtr> enter(const std::optional<HeldPtr>& cache) {
  module::ThreadCache before = module::set_thread_cache({cache_of(cache)});
  if (before.cache == nullptr) return std::nullopt;
  return c10::make_intrusive<HeldCache>(std::move(before.cache));
}

void flush_all() {
  for (const cache::CachePtr& cache : cache::all_caches()) cache->flush();
}

}  // namespace

void register_caches(torch::Library& m) {
  m.class_<HeldCache>("Cache").def_static("use", &use);
  const std::string held = "__torch__.torch.classes.cache.Cache";
  define(m, "_make_cache(Dict(str, str) options) -> " + held, &make_held);
  define(m, "_enter_cache(" + held + "? cache) -> " + held + "?", &enter);
  define(m, "_flush_all() -> ()", &flush_all);
}

}  // namespace modcache::ops
