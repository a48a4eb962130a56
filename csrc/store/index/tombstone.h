// SPDX-License-Identifier: Apache-2.0
//
// Clears as records of a segment, which keep a rebuild from bringing back what was removed.
#pragma once

#include <string_view>

#include "store/index/index.h"
#include "store/segment/record.h"
#include "store/segment/segment_writer.h"

namespace modcache::store {

// Borrows from `clear`.
NewRecord tombstone_of(const Clear& clear);

// What a record of kind clear says.
Clear clear_of(const RecordHead& head, std::string_view scope, std::string_view key_prefix);

// Of the one entry `sequence` of this context and key: what it replaced must not come back.
Clear clear_of_replaced(const Context& context, std::string_view key, Sequence sequence);

}  // namespace modcache::store
