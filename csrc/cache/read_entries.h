// SPDX-License-Identifier: Apache-2.0
//
// Rows that were found, read into entries of this process.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/value.h"

namespace modcache::cache {

// One for each of `rows`, which `found` has. kCorruption: what lies there is no such value; other
// codes: it could not be read.
std::vector<Result<EntryPtr>> read_entries(const ValueFormat& format, Form form,
                                           const FoundRows& found,
                                           const std::vector<std::size_t>& rows);
// Does the same for one value that is handed out once and not kept (ValueFormat::read_once()).
Result<EntryPtr> read_entry_once(const ValueFormat& format, const FoundRows& found,
                                 std::size_t row);

}  // namespace modcache::cache
