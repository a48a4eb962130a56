// SPDX-License-Identifier: Apache-2.0
#include "cache/value.h"

#include "base/clock.h"

namespace modcache::cache {

std::int64_t now_us() { return modcache::now_us(); }

}  // namespace modcache::cache
