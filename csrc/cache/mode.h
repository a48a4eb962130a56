// SPDX-License-Identifier: Apache-2.0
//
// The runtime flag: what a call may do with the cache. A mode is a set of permissions, and
// levels (process; later thread and directory) combine by leaving out what any of them lacks.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace modcache::cache {

enum class Mode { kOff, kRead, kOn };

// "off", "read", "on"; kInvalidArgument names what was given and what is valid.
Result<Mode> parse_mode(std::string_view text);
std::string_view mode_name(Mode mode);

constexpr bool may_read(Mode mode) { return mode != Mode::kOff; }
constexpr bool may_write(Mode mode) { return mode == Mode::kOn; }

}  // namespace modcache::cache
