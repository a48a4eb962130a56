// SPDX-License-Identifier: Apache-2.0
//
// The mode that somebody gave a directory from outside, for all processes that use it. It lies in
// the control page, and stays until it is changed. Nothing else of the directory is opened here;
// any thread and process may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

// The numbers are those in the page.
enum class DirectoryMode : std::uint32_t { kOff = 0, kRead = 1, kOn = 3 };

// "off", "read", "on".
std::string_view directory_mode_name(DirectoryMode mode);
// kInvalidArgument names what was given and what is valid.
Result<DirectoryMode> parse_directory_mode(std::string_view text);

// kOn where none was set. kNotFound: no such directory. kInvalidArgument: a file.
Result<DirectoryMode> directory_mode(fs::FileSystem& file_system, const std::string& directory);

// Running processes see it at their next call. Makes directory and page where there are none.
// kBusy: another process kept the directory's lock for `patience_ms`. kUnsupportedVersion: a newer
// modcache wrote there, and no byte changes.
Status set_directory_mode(fs::FileSystem& file_system, const std::string& directory,
                          DirectoryMode mode, std::int64_t patience_ms);

// The mode as it stands in the page: its number, and above it the number with all bits flipped.
using ModeWord = std::uint64_t;
inline constexpr ModeWord kNoModeWord = 0;  // none was ever set: kOn

constexpr ModeWord mode_word_of(std::uint32_t number) { return (ModeWord{~number} << 32) | number; }
// What a page says that another has taken the place of.
inline constexpr ModeWord kSupersededModeWord = mode_word_of(0x7fffffff);

// Nothing: no mode's word.
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
