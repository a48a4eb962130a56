// SPDX-License-Identifier: Apache-2.0
#include "cache/value.h"

namespace modcache::cache {

bool is_expired(const Entry& entry, std::int64_t max_age_s) {
  return max_age_s > 0 && (now_us() - entry.stored_at_us) / 1'000'000 >= max_age_s;
}

}  // namespace modcache::cache
