// SPDX-License-Identifier: Apache-2.0
//
// Lineage: which scope came from which. Scopes of one class (or cached function), method and
// namespace are a family; each came from the older one that differs least from it, as far as
// manifests know.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "command_line/manifest.h"

namespace modcache::command_line {

struct Descendant {
  Manifest manifest;
  std::size_t parent = 0;  // among the members of its family; its own place: it is the first
  std::vector<Difference> changes;
};

struct Family {
  std::vector<Descendant> members;  // the oldest first
  std::size_t left_out = 0;         // older ones
};

// Older members of a larger family are left out, as each is compared with all.
inline constexpr std::size_t kMostOfFamily = 24;

// Returns the families, the one with the latest scope first.
std::vector<Family> families_of(std::vector<Manifest> manifests);

// Returns the changes in words: "weight a, b and 3 more; torch 2.13 -> 2.14". Empty: there are
// none.
std::string changes_text(const std::vector<Difference>& changes);

}  // namespace modcache::command_line
