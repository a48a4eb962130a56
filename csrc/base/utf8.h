// SPDX-License-Identifier: Apache-2.0
//
// Tells text from other bytes by Python's rules, as Python raises an error for invalid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace modcache {

// Returns whether `text` is UTF-8 without overlong forms, surrogates and code points beyond
// Unicode. True for an empty text.
bool is_utf8(std::string_view text);

// Returns a path as UTF-8: each byte that is no text becomes the character U+10FF00 + byte, of a
// private use area. The Python package turns these into the surrogates that Python has for them.
std::string text_of_path(std::string_view path);
// The inverse of text_of_path().
std::string path_of_text(std::string_view text);

}  // namespace modcache
