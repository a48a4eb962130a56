// SPDX-License-Identifier: Apache-2.0
//
// What the corpus of the index table belongs to.
#pragma once

#include "store/shared_index/index_table.h"

namespace modcache::fuzz {

inline constexpr store::IndexTable::Owner kOwnerOfTable{{1, 2}, 3, 4};

}  // namespace modcache::fuzz
