// SPDX-License-Identifier: Apache-2.0
//
// Home directories at the beginning of paths.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace modcache::cache {

// Replaces `~` and `~user` at the beginning of the path of a directory by a home directory, as a
// shell does. kInvalidArgument: there is no such user.
Result<std::string> expand_home(std::string_view path);

}  // namespace modcache::cache
