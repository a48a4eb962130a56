// SPDX-License-Identifier: Apache-2.0
//
// Draws what `modcache top` shows of an activity: a screen full of lines, or one line. Pure
// functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "command_line/activity.h"

namespace modcache::command_line {

// Returns at most `rows` lines of at most `columns`. What matters most comes first, and the rest is
// left out where there is no room. Nothing in them is obeyed by a terminal.
std::vector<std::string> top_screen(const Activity& activity, std::size_t columns,
                                    std::size_t rows);

// The lines for output that is no terminal have columns of a fixed width, below this title.
std::string top_line_title();
std::string top_line(const Activity& activity, std::int64_t at_us);

}  // namespace modcache::command_line
