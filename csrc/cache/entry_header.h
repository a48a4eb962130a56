// SPDX-License-Identifier: Apache-2.0
//
// An entry's header in the store: the signature's size (4 bytes, little-endian), the signature,
// the value's header. FORMAT.md has it, too.
#pragma once

#include <string>
#include <string_view>

namespace modcache::cache {

std::string pack_header(std::string_view signature, std::string_view value_header);

// False: it is none. The parts point into `header`.
bool unpack_header(std::string_view header, std::string_view& signature,
                   std::string_view& value_header);

}  // namespace modcache::cache
