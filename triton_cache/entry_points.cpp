// SPDX-License-Identifier: Apache-2.0
//
// The functions that Triton looks for in libtritoncache_modcache.so. It calls Initialize once,
// before any model is loaded, and Finalize once, after the last response; after that it may close
// the library. The other two come from many threads.
#include <cstdio>
#include <memory>
#include <utility>

#include "triton_cache/plugin.h"
#include "triton_cache/triton_api.h"

namespace {

using modcache::triton_cache::Plugin;

Plugin* plugin_of(TRITONCACHE_Cache* cache) { return reinterpret_cast<Plugin*>(cache); }

}  // namespace

// Triton's own names. NOLINTBEGIN(readability-identifier-naming)
extern "C" {

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONCACHE_CacheInitialize(
    TRITONCACHE_Cache** cache, const char* config) {
  const auto api = modcache::triton_cache::find_triton_api();
  if (!api.is_ok()) {
    // There is no function to make an error with: a null cache is one.
    std::fprintf(stderr, "modcache: error: %s\n", api.status().message().c_str());
    return nullptr;
  }
  std::unique_ptr<Plugin> plugin;
  TRITONSERVER_Error* const error = Plugin::initialize(api.value(), config, plugin);
  if (cache != nullptr) *cache = reinterpret_cast<TRITONCACHE_Cache*>(plugin.release());
  return error;
}

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONCACHE_CacheFinalize(
    TRITONCACHE_Cache* cache) {
  delete plugin_of(cache);
  return nullptr;
}

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  return plugin_of(cache)->lookup(key, entry, allocator);
}

__attribute__((visibility("default"))) TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator) {
  return plugin_of(cache)->insert(key, entry, allocator);
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
