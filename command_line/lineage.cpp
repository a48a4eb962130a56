// SPDX-License-Identifier: Apache-2.0
#include "command_line/lineage.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kMostNames = 3;

bool is_older(const Manifest& a, const Manifest& b) {
  return std::tie(a.created_us, a.scope) < std::tie(b.created_us, b.scope);
}

Family family_of(std::vector<Manifest> manifests) {
  Family family;
  std::sort(manifests.begin(), manifests.end(), is_older);
  if (manifests.size() > kMostOfFamily) {
    family.left_out = manifests.size() - kMostOfFamily;
    manifests.erase(manifests.begin(), manifests.end() - kMostOfFamily);
  }
  for (Manifest& manifest : manifests) {
    Descendant one;
    one.parent = family.members.size();
    // The latest first: among equals it is the parent.
    for (std::size_t i = family.members.size(); i-- > 0;) {
      auto changes = differences(family.members[i].manifest, manifest);
      const bool is_first = one.parent == family.members.size();
      if (!is_first && changes.size() >= one.changes.size()) continue;
      one.parent = i;
      one.changes = std::move(changes);
    }
    one.manifest = std::move(manifest);
    family.members.push_back(std::move(one));
  }
  return family;
}

}  // namespace

std::vector<Family> families_of(std::vector<Manifest> manifests) {
  using Name = std::tuple<std::string, std::string, std::string>;
  std::map<Name, std::vector<Manifest>> by_name;
  for (Manifest& manifest : manifests) {
    const Name name{manifest.name_space, manifest.class_name, manifest.method};
    by_name[name].push_back(std::move(manifest));
  }
  std::vector<Family> families;
  families.reserve(by_name.size());
  for (auto& named : by_name) families.push_back(family_of(std::move(named.second)));
  std::sort(families.begin(), families.end(), [](const Family& a, const Family& b) {
    return is_older(b.members.back().manifest, a.members.back().manifest);
  });
  return families;
}

std::string changes_text(const std::vector<Difference>& changes) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < changes.size();) {
    std::size_t end = i;
    std::vector<std::string> names;
    for (; end < changes.size() && changes[end].kind == changes[i].kind; ++end) {
      const Difference& one = changes[end];
      if (names.size() < kMostNames && !one.name.empty()) names.push_back(one.name);
      if (one.name.empty()) names.push_back(one.in_a + " -> " + one.in_b);
    }
    std::string part = changes[i].kind + ' ' + joined(names);
    const std::size_t more = end - i - names.size();
    if (more > 0) part += " and " + count_text(static_cast<std::int64_t>(more)) + " more";
    parts.push_back(std::move(part));
    i = end;
  }
  return joined(parts, "; ");
}

}  // namespace modcache::command_line
