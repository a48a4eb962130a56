// SPDX-License-Identifier: Apache-2.0
//
// Plugin: the four functions that Triton asks of a cache, over a table of the server's functions.
// Nothing here throws. Only initialize() and mistakes of the caller are errors: whatever else goes
// wrong, a look-up answers kNotFound, and an insertion succeeds without keeping anything.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cache/settings.h"
#include "triton_cache/response_cache.h"
#include "triton_cache/triton_api.h"

namespace modcache::triton_cache {

class Plugin {
 public:
  // Sets `plugin`, or gives an error that says what is valid: of a bad setting, or a server of
  // another API. From now on messages of the cache go to the server's log.
  static TritonApi::Error initialize(const TritonApi& api, const char* config,
                                     std::unique_ptr<Plugin>& plugin) noexcept;
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  TritonApi::Error lookup(const char* key, TritonApi::Entry* entry,
                          TRITONCACHE_Allocator* allocator) noexcept;
  TritonApi::Error insert(const char* key, TritonApi::Entry* entry,
                          TRITONCACHE_Allocator* allocator) noexcept;

  ResponseCache& responses() { return *responses_; }

 private:
  Plugin(const TritonApi& api, std::unique_ptr<ResponseCache> responses);

  static Result<std::unique_ptr<Plugin>> make(const TritonApi& api, const char* config);
  Status take_over(std::string_view key, TritonApi::Entry* entry, TRITONCACHE_Allocator* allocator);
  TritonApi::Error argument_error(const char* key, const TritonApi::Entry* entry,
                                  const TRITONCACHE_Allocator* allocator) const;
  void report(const char* during, const Status& failure) noexcept;

  const TritonApi api_;
  std::unique_ptr<ResponseCache> responses_;
};

// The settings of the plug-in, as Triton hands over what its command line has:
//     --cache-config modcache,dir=/data/cache --cache-config modcache,disk=10GB
// They are those of modcache that say something about bytes; the others are about modules.
// Reads a JSON object of settings. kInvalidArgument: it is none, or names an unknown setting; the
// message lists the valid ones. Values are for Cache::configure() to check.
Result<cache::Options> parse_config(std::string_view config);

}  // namespace modcache::triton_cache
