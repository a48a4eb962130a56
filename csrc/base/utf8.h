// SPDX-License-Identifier: Apache-2.0
//
// Whether bytes are text, as Python reads it: it raises for any that are not.
#pragma once

#include <string_view>

namespace modcache {

// UTF-8 without overlong forms, surrogates and what lies beyond Unicode. "" is.
bool is_utf8(std::string_view text);

}  // namespace modcache
