// SPDX-License-Identifier: Apache-2.0
//
// What the scope of a ClearFilter may be besides a scope: a *range*, which covers all contexts
// whose description begins with some text, narrowed to one scope where that is not empty. It is one
// text, so that clear records and the table `clears` keep it where they keep a scope (FORMAT.md).
// It begins with a byte that no UTF-8 text has. A version that knows no ranges takes it for a scope
// that nobody has, and clears nothing by it.
#pragma once

#include <string>
#include <string_view>

#include "store/store.h"

namespace modcache::store {

// The range, to be put into ClearFilter::scope.
std::string scope_range(std::string_view description_prefix, std::string_view scope);

// What a ClearFilter::scope covers. Points into the text that it was made of. A range that is
// damaged covers what is named exactly so: nothing.
struct ScopeFilter {
  std::string_view description_prefix;  // empty: any
  std::string_view scope;               // empty: any

  explicit ScopeFilter(std::string_view text);
  bool covers(const Context& context) const;
};

// Whether a clear with this filter is about an entry of this context and key, stored at that time.
bool covers(const ClearFilter& filter, const Context& context, std::string_view key,
            std::int64_t stored_at_us);

}  // namespace modcache::store
