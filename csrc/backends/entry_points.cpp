// SPDX-License-Identifier: Apache-2.0
//
// What libmodcache_remote.so exports.
#include <string>

#include "backends/redis/redis_backend.h"
#include "remote/engine_library.h"

#define MODCACHE_EXPORT extern "C" __attribute__((visibility("default")))

using modcache::remote::Backend;
using modcache::remote::BackendOptions;

MODCACHE_EXPORT int modcache_remote_interface_version() {
  return modcache::remote::kInterfaceVersion;
}

MODCACHE_EXPORT Backend* modcache_remote_make_backend(const BackendOptions& options,
                                                      std::string& error) {
  auto made = modcache::backends::make_redis_backend(options);
  if (made.is_ok()) return std::move(made).value().release();
  error = made.status().message();
  return nullptr;
}
