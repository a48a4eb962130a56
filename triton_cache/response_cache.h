// SPDX-License-Identifier: Apache-2.0
//
// ResponseCache: responses by the key that Triton makes, in memory and in a directory, by way of
// cache::Cache. Knows nothing of Triton's functions.
//
// Triton looks a key up in the threads that hand requests to models, so nothing here waits for
// another request's run. No call but create() fails or throws for a reason of the cache's own:
// at worst a key is missing or a response is not kept, counted and logged. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "triton_cache/miss_times.h"
#include "triton_cache/response.h"

namespace modcache::triton_cache {

using ResponsePtr = std::shared_ptr<const Response>;

class ResponseCache {
 public:
  // The scope of all entries: Triton hands a cache no name of a model.
  static constexpr std::string_view kScope = "triton";

  // `config`: see config.h; what it leaves open comes from the environment (MODCACHE_<NAME>).
  // `packing`: names how the server packs responses; those of one are not found under another.
  // kInvalidArgument: a bad setting. Opens no file.
  static Result<std::unique_ptr<ResponseCache>> create(std::string_view config,
                                                       std::string_view packing);
  // Ends when all that was inserted is safe.
  ~ResponseCache();
  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;

  // Null: the model has to run.
  ResponsePtr lookup(std::string_view key);

  // Whether a response of this size would be kept; counts where not. Asked before it is copied.
  bool wants(std::size_t size_bytes);
  // Keeps a response, replacing what the key led to. One that Triton could not unpack is not kept.
  void insert(std::string_view key, ResponsePtr response);

  cache::Cache& cache() { return cache_; }

 private:
  ResponseCache() : cache_(format_) {}

  cache::Request request(std::string_view key) const { return {context_, key, /*signature=*/{}}; }
  void count(cache::Counter counter, std::int64_t amount = 1) {
    cache_.counters().add(kScope, counter, amount);
  }
  void compare(std::string_view key, const Response& fresh);

  ResponseFormat format_;
  cache::Cache cache_;
  cache::SessionPtr session_;
  cache::ContextPtr context_;
  MissTimes miss_times_;
};

}  // namespace modcache::triton_cache
