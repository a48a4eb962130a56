// SPDX-License-Identifier: Apache-2.0
#include "store/entry/scope_filter.h"

#include <charconv>
#include <system_error>

#include "store/entry/entry_id.h"

namespace modcache::store {
namespace {

// The mark is followed by the size of the description prefix in decimal, ":", the prefix, and the
// scope.
constexpr std::string_view kRangeMark =
    "\xff"
    "range ";

}  // namespace

std::string scope_range(std::string_view description_prefix, std::string_view scope) {
  std::string range(kRangeMark);
  range += std::to_string(description_prefix.size());
  range += ':';
  range += description_prefix;
  range += scope;
  return range;
}

ScopeFilter::ScopeFilter(std::string_view text) : scope(text) {
  if (text.substr(0, kRangeMark.size()) != kRangeMark) return;
  text.remove_prefix(kRangeMark.size());
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc()) return;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.empty() || text.front() != ':' || size > text.size() - 1) return;
  description_prefix = text.substr(1, size);
  scope = text.substr(1 + size);
}

bool ScopeFilter::covers(const Context& context) const {
  const std::string_view description = context.description;
  return description.substr(0, description_prefix.size()) == description_prefix &&
         (scope.empty() || scope == context.scope);
}

bool covers(const ClearFilter& filter, const Context& context, std::string_view key,
            std::int64_t stored_at_us) {
  if (filter.older_than_us != 0 && stored_at_us >= filter.older_than_us) return false;
  return ScopeFilter(filter.scope).covers(context) &&
         key.substr(0, filter.key_prefix.size()) == filter.key_prefix;
}

}  // namespace modcache::store
