// SPDX-License-Identifier: Apache-2.0
#include "store/entry/clear.h"

#include "store/entry/scope_filter.h"

namespace modcache::store {

bool is_cleared_by(const Clear& clear, const Context& context, std::string_view key,
                   Sequence sequence, std::int64_t stored_at_us) {
  if (sequence >= clear.sequence) return false;
  if (clear.context == Digest128{}) return covers(clear.filter, context, key, stored_at_us);
  // The digest names one context, so its scope does not matter, and the prefix is a whole key.
  const std::int64_t before_us = clear.filter.older_than_us;
  return clear.context == context.digest && key == clear.filter.key_prefix &&
         (before_us == 0 || stored_at_us < before_us);
}

}  // namespace modcache::store
