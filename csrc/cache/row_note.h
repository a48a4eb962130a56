// SPDX-License-Identifier: Apache-2.0
//
// The note of a directory (store/directory/notes.h) that says whether results of a scope consist of
// rows (module/call/row_proof.h). It goes with the scope's entries: a name whose entries were
// cleared may get another meaning.
#pragma once

#include <string>
#include <string_view>

namespace modcache::cache {

inline constexpr std::string_view kRowNote = "rows ";

inline std::string row_note_of(std::string_view name_space, std::string_view scope) {
  return std::string(kRowNote) + std::string(name_space) + '\n' + std::string(scope);
}

// Returns whether a note is that of this scope, in any namespace.
inline bool is_row_note_of(std::string_view about, std::string_view scope) {
  if (about.substr(0, kRowNote.size()) != kRowNote || about.size() <= scope.size()) return false;
  const std::string_view end = about.substr(about.size() - scope.size() - 1);
  return end.front() == '\n' && end.substr(1) == scope;
}

}  // namespace modcache::cache
