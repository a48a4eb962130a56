// SPDX-License-Identifier: Apache-2.0
//
// The mode that somebody gave a directory from outside, for all processes that use it. It is in the
// control page, and stays until it is changed. These functions open nothing else of the directory;
// any thread and process may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

// The page holds these numbers, so they never change.
enum class DirectoryMode : std::uint32_t { kOff = 0, kRead = 1, kOn = 3 };

// "off", "read", "on".
std::string_view directory_mode_name(DirectoryMode mode);
// Returns kInvalidArgument for any other text; the message names it and the valid ones.
Result<DirectoryMode> parse_directory_mode(std::string_view text);

// Returns kOn where no mode was set. kNotFound: there is no such directory. kInvalidArgument: it is
// a file.
Result<DirectoryMode> directory_mode(fs::FileSystem& file_system, const std::string& directory);

// Sets the mode, which running processes see at their next call. Creates directory and page where
// they are missing. kBusy: another process kept the directory's lock for `patience_ms`.
// kUnsupportedVersion: another version of modcache wrote there, and nothing was changed.
Status set_directory_mode(fs::FileSystem& file_system, const std::string& directory,
                          DirectoryMode mode, std::int64_t patience_ms);

// The mode as the page has it: its number in the low half, and the number with all bits flipped in
// the high half.
using ModeWord = std::uint64_t;
inline constexpr ModeWord kNoModeWord = 0;  // no mode was ever set: kOn

constexpr ModeWord mode_word_of(std::uint32_t number) { return (ModeWord{~number} << 32) | number; }
// The word in a page that another page has replaced.
inline constexpr ModeWord kSupersededModeWord = mode_word_of(0x7fffffff);

// Returns nothing for a word that is not a mode's.
constexpr std::optional<DirectoryMode> mode_in(ModeWord word) {
  switch (word) {
    case kNoModeWord:
    case mode_word_of(static_cast<std::uint32_t>(DirectoryMode::kOn)): return DirectoryMode::kOn;
    case mode_word_of(static_cast<std::uint32_t>(DirectoryMode::kRead)):
      return DirectoryMode::kRead;
    case mode_word_of(static_cast<std::uint32_t>(DirectoryMode::kOff)): return DirectoryMode::kOff;
    default: return std::nullopt;
  }
}

}  // namespace modcache::store
