// SPDX-License-Identifier: Apache-2.0
//
// Writing a file for people at once: a reader sees all of it, or what was there before.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace modcache::command_line {

// Replaces a file that is empty or begins with `beginning`, which only files of this kind do, or
// makes it. kInvalidArgument: something else is there, or its folder is not; nothing was changed.
// kIoError, kNoSpace: it cannot be written; what was there stays.
Status write_whole_file(const std::string& path, std::string_view text, std::string_view beginning);

}  // namespace modcache::command_line
