// SPDX-License-Identifier: Apache-2.0
//
// A module that Python cached (modcache.cached) is scripted with two methods: a forward that calls
// the operator, and its own forward under the name below. Entries and fingerprints use one name for
// both, so that the cached module shares them with the wrapped one.
#pragma once

#include <string>

namespace modcache::module {

inline constexpr char kPlainForward[] = "_modcache_forward";

// Returns the name of a method in entries and fingerprints.
inline std::string counted_name(const std::string& method) {
  return method == kPlainForward ? "forward" : method;
}

}  // namespace modcache::module
