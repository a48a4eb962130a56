// SPDX-License-Identifier: Apache-2.0
//
// Way: how Auto keeps entries at a time. All ways read the same Usage, so a change of way loses
// nothing.
#pragma once

#include <cstddef>

namespace modcache::policy {

enum class Way {
  kStable,  // as S3Fifo, but a full tier takes one in a few of the new entries (stable.h)
  kOpen,    // as S3Fifo
  kRecent,  // as Lru
};
inline constexpr std::size_t kWays = 3;

}  // namespace modcache::policy
