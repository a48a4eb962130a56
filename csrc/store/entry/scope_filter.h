// SPDX-License-Identifier: Apache-2.0
//
// Besides a scope, the scope of a ClearFilter may be a *range*: all contexts whose description
// begins with some text, narrowed to one scope where that is not empty. A range is one text, so
// that clear records and the table `clears` store it where they store a scope (FORMAT.md). It
// begins with a byte that no UTF-8 text has. A version that does not know ranges takes it for a
// scope that nobody has, and clears nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/entry/entry_id.h"

namespace modcache::store {

// Makes a range for ClearFilter::scope.
std::string scope_range(std::string_view description_prefix, std::string_view scope);

// A ClearFilter::scope taken apart. Points into the text that it was made from. A damaged range
// covers only contexts that have this very text as scope: none.
struct ScopeFilter {
  std::string_view description_prefix;  // empty: any
  std::string_view scope;               // empty: any

  explicit ScopeFilter(std::string_view text);
  bool covers(const Context& context) const;
};

// Returns whether a clear with this filter covers an entry of this context and key, stored at that
// time.
bool covers(const ClearFilter& filter, const Context& context, std::string_view key,
            std::int64_t stored_at_us);

}  // namespace modcache::store
