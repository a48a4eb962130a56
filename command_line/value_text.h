// SPDX-License-Identifier: Apache-2.0
//
// The type of a stored value in words: "float32[3, 256]", "(float32[2], {'ids': int64[7]})".
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace modcache::command_line {

struct ValueText {
  std::string value;      // shortened where it would fill a screen
  std::string signature;  // of the input that the value was computed from; empty: none
  std::string codec;      // "none", "zstd"
};

// Describes a value by its entry's header (FORMAT.md). kCorruption when it is not a header of
// modcache's.
Result<ValueText> describe_value(std::string_view header);

}  // namespace modcache::command_line
