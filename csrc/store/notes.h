// SPDX-License-Identifier: Apache-2.0
//
// Notes: short texts that a directory keeps besides its entries, each in a small file of its own
// (FORMAT.md): what would cost time to find out again, and nothing that could not be. A note that
// is lost, damaged or half written is as one that was never kept.
//
// Any thread and process; the last who keeps a note wins.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/directory.h"

namespace modcache::store {

// `about` and text together.
inline constexpr std::size_t kMaxNoteSizeBytes = 1 << 20;

// kNotFound where there is none that is whole.
Result<std::string> find_note(const Directory& directory, std::string_view about);

// Whether the file `name` of the folder of notes is exactly a note, and the one that its name says.
Result<bool> is_whole_note(const Directory& directory, const std::string& name);
bool is_whole_note(std::string_view name, std::string_view bytes);

// How many notes a directory keeps, about: one more removes the older half.
inline constexpr std::size_t kMostNotes = 4096;
inline constexpr std::uint64_t kAnyNotesBytes = std::numeric_limits<std::uint64_t>::max();

// Calls visit(about, text) for each note that is whole, in no order. Reads all of them.
Status visit_notes(const Directory& directory,
                   const std::function<void(std::string_view about, std::string_view text)>& visit);

// Also removes what writers that died left, notes that are too many, and the oldest, until all
// together take `most_bytes` at most; a note that takes more than that alone is not kept, which is
// no failure.
// REQUIRES: the directory is there. kInvalidArgument: too long.
Status keep_note(const Directory& directory, std::string_view about, std::string_view text,
                 std::uint64_t most_bytes = kAnyNotesBytes);

// Removes them all, as those that lie in the folder now.
Status clear_notes(const Directory& directory);

}  // namespace modcache::store
