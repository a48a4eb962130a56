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
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/mode.h"
#include "triton_cache/response.h"

namespace modcache::triton_cache {

// MissTimes: when a key missed, until its response comes. Triton does not tell how long a model
// ran, so the time between the two stands for it; waiting for the model's turn is in it.
//
// Remembers so many keys; more are given up, the oldest first. Thread-safe.
class MissTimes {
 public:
  static constexpr std::size_t kMost = 4096;

  struct Missed {
    std::int64_t run_us = 0;  // how long ago it was
    cache::Generation generation;
  };

  void note_miss(std::string_view key, std::int64_t now_us, cache::Generation generation = {});
  // Returns nullopt if the miss is not known. Forgets the key.
  std::optional<Missed> take(std::string_view key, std::int64_t now_us);

 private:
  struct Miss {
    std::uint64_t key_hash = 0;
    std::int64_t at_us = 0;
    cache::Generation generation;
  };

  Mutex mutex_;
  std::list<Miss> misses_ MODCACHE_GUARDED_BY(mutex_);  // the oldest first
  std::unordered_map<std::uint64_t, std::list<Miss>::iterator> by_key_ MODCACHE_GUARDED_BY(mutex_);
};

using ResponsePtr = std::shared_ptr<const Response>;

class ResponseCache {
 public:
  // The scope of all entries: Triton hands a cache no name of a model.
  static constexpr std::string_view kScope = "triton";

  // `config`: see parse_config() in plugin.h; what it leaves open comes from the environment
  // (MODCACHE_<NAME>). `packing`: names how the server packs responses; those of one are not found
  // under another. kInvalidArgument: a bad setting. Opens no file.
  static Result<std::unique_ptr<ResponseCache>> create(std::string_view config,
                                                       std::string_view packing);
  // Ends when all that was inserted is safe.
  ~ResponseCache();
  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;

  // Null: the model has to run.
  ResponsePtr lookup(std::string_view key);

  // A response that is wanted. `key` is borrowed.
  struct Wanted {
    std::string_view key;
    cache::Mode mode = cache::Mode::kOff;
    std::optional<std::int64_t> run_us;  // how long the response took; nullopt: not known
    cache::Generation generation;        // from when it was looked up
  };
  // Nothing: the response to this key would not be kept, which is counted where it is no matter of
  // the mode. Once for each response, before it is copied.
  std::optional<Wanted> wanted(std::string_view key, std::size_t size_bytes);
  // Keeps the response, replacing what the key led to. One that Triton could not unpack is not
  // kept. In mode `verify` it is compared instead.
  void insert(const Wanted& wanted, ResponsePtr response);

  cache::Cache& cache() { return cache_; }

 private:
  ResponseCache();

  cache::Keys keys(std::string_view key) const;
  void count(cache::Counter counter, std::int64_t amount = 1) {
    cache_.counters().add(kScope, counter, amount);
  }
  ResponsePtr find(std::string_view key, bool may_write);
  void compare(std::string_view key, const Response& fresh);

  cache::Cache cache_;
  cache::ConfigurationPtr configuration_;
  cache::ContextPtr context_;
  MissTimes miss_times_;
};

}  // namespace modcache::triton_cache
