// SPDX-License-Identifier: Apache-2.0
//
// What libmodcache_remote.so exports.
#include <string>

#include "backends/objects/object_backend.h"
#include "backends/redis/redis_backend.h"
#include "remote/engine_library.h"

#define MODCACHE_EXPORT extern "C" __attribute__((visibility("default")))

using modcache::remote::Backend;
using modcache::remote::BackendOptions;
using modcache::remote::Engine;

MODCACHE_EXPORT int modcache_remote_interface_version() {
  return modcache::remote::kInterfaceVersion;
}

MODCACHE_EXPORT Backend* modcache_remote_make_backend(const BackendOptions& options,
                                                      std::string& error) {
  const bool is_redis =
      options.address.engine == Engine::kRedis || options.address.engine == Engine::kRedisCluster;
  auto made = is_redis ? modcache::backends::make_redis_backend(options)
                       : modcache::backends::make_object_backend(options);
  if (made.is_ok()) return std::move(made).value().release();
  error = made.status().message();
  return nullptr;
}
