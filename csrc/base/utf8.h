// SPDX-License-Identifier: Apache-2.0
//
// Tells text from other bytes by Python's rules, as Python raises an error for invalid UTF-8.
#pragma once

#include <string_view>

namespace modcache {

// Returns whether `text` is UTF-8 without overlong forms, surrogates and code points beyond
// Unicode. True for an empty text.
bool is_utf8(std::string_view text);

}  // namespace modcache
