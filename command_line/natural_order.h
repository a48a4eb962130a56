// SPDX-License-Identifier: Apache-2.0
//
// The order in which people expect names: numbers inside them count as numbers, "img-2" comes
// before "img-10". A total order over bytes of any kind; numbers may have any length.
#pragma once

#include <string_view>

namespace modcache::command_line {

// Names that are the same but for zeros before numbers come in the order of their bytes.
bool comes_before(std::string_view a, std::string_view b);

}  // namespace modcache::command_line
