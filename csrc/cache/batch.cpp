// SPDX-License-Identifier: Apache-2.0
#include "cache/batch.h"

#include <algorithm>

namespace modcache::cache {

// Never destroyed, as all that is the process's own.
const FoundRows& BatchFound::no_rows() {
  static const FoundRows& none = *new FoundRows;
  return none;
}

std::vector<std::size_t> BatchFound::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const bool is_verified = std::binary_search(verified_.begin(), verified_.end(), i);
    if (is_missing(i) && !is_verified) missing.push_back(i);
  }
  return missing;
}

}  // namespace modcache::cache
