// SPDX-License-Identifier: Apache-2.0
//
// Clears as records of a segment, which keep a rebuild from bringing back removed entries.
#pragma once

#include <string_view>

#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"
#include "store/segment/segment_writer.h"

namespace modcache::store {

// Makes the record of a clear, which it borrows from.
NewRecord tombstone_of(const Clear& clear);

// Returns the clear that a record of kind clear describes.
Clear clear_of(const RecordHead& head, std::string_view scope, std::string_view key_prefix);

// Makes the clear of the single entry `sequence` of this context and key, so that the older value
// which it replaced does not come back.
Clear clear_of_replaced(const Context& context, std::string_view key, Sequence sequence);

}  // namespace modcache::store
