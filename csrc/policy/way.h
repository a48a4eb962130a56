// SPDX-License-Identifier: Apache-2.0
//
// Way: how Auto keeps entries at a time. What is written down of an entry's use serves all of them,
// so nothing is lost by changing over.
#pragma once

#include <cstddef>

namespace modcache::policy {

enum class Way {
  kStable,  // as S3Fifo, but a full tier takes one in a few of what is new (stable.h)
  kOpen,    // as S3Fifo
  kRecent,  // as Lru
};
inline constexpr std::size_t kWays = 3;

}  // namespace modcache::policy
