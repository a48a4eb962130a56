// SPDX-License-Identifier: Apache-2.0
#include "cache/batch.h"

namespace modcache::cache {

std::vector<std::size_t> BatchFound::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (is_missing(i)) missing.push_back(i);
  }
  return missing;
}

}  // namespace modcache::cache
