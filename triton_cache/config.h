// SPDX-License-Identifier: Apache-2.0
//
// The settings of the plug-in, as Triton hands over what its command line has:
//     --cache-config modcache,dir=/data/cache --cache-config modcache,disk=10GB
// They are those of modcache that say something about bytes; the others are about modules.
#pragma once

#include <string_view>

#include "base/result.h"
#include "cache/settings.h"

namespace modcache::triton_cache {

// Reads a JSON object of settings. kInvalidArgument: it is none, or names an unknown setting; the
// message lists the valid ones. Values are for Cache::configure() to check.
Result<cache::Options> parse_config(std::string_view config);

}  // namespace modcache::triton_cache
