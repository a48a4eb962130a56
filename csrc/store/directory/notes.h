// SPDX-License-Identifier: Apache-2.0
//
// Notes: short texts that a directory keeps besides its entries, each in its own small file
// (FORMAT.md). A note saves the time to find something out again, and nothing depends on it: one
// that is lost, damaged or half written counts as missing.
//
// Any thread and process may call; the last writer of a note wins.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/directory/directory.h"

namespace modcache::store {

// The limit for `about` and text together.
inline constexpr std::size_t kMaxNoteSizeBytes = 1 << 20;

// Returns kNotFound when there is no intact note.
Result<std::string> find_note(const Directory& directory, std::string_view about);

// Returns whether the file `name` in the folder of notes is exactly the note that its name
// promises.
Result<bool> is_whole_note(const Directory& directory, const std::string& name);
bool is_whole_note(std::string_view name, std::string_view bytes);

// About the number of notes that a directory keeps: one more removes the older half.
inline constexpr std::size_t kMostNotes = 4096;
inline constexpr std::uint64_t kAnyNotesBytes = std::numeric_limits<std::uint64_t>::max();

// Calls visit(about, text) for each intact note, in no order. Reads all of them.
Status visit_notes(const Directory& directory,
                   const std::function<void(std::string_view about, std::string_view text)>& visit);

// Writes a note. Also removes the temporary files of writers that died, and the oldest notes until
// all together fit `most_bytes` and their number the limit. A note that takes more than
// `most_bytes` alone is not written, which is not an error.
// REQUIRES: the directory exists. kInvalidArgument: too long.
Status keep_note(const Directory& directory, std::string_view about, std::string_view text,
                 std::uint64_t most_bytes = kAnyNotesBytes);

// Removes all notes that are in the folder now.
Status clear_notes(const Directory& directory);

}  // namespace modcache::store
