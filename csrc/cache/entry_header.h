// SPDX-License-Identifier: Apache-2.0
//
// An entry's header in the store: the input's sample as the header's own part
// (store/entry/own_part.h), the signature's size (4 bytes, little-endian), the signature, the
// value's header. FORMAT.md has it, too.
#pragma once

#include <string>
#include <string_view>

namespace modcache::cache {

// `sample`: empty where there is none.
std::string pack_header(std::string_view signature, std::string_view value_header,
                        std::string_view sample = {});

// False: it is none. The parts point into `header`, whose own part may be there or not; without it
// the sample is empty.
bool unpack_header(std::string_view header, std::string_view& signature,
                   std::string_view& value_header, std::string_view* sample = nullptr);

}  // namespace modcache::cache
