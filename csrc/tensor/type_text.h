// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/jit_type.h>

#include <string_view>

namespace modcache::tensor {

// Parses the annotation_str() of a type, such as "Dict[str, List[Tensor]]". Returns null for any
// other text, and for the name of a class, which only a declared type knows.
c10::TypePtr parse_type(std::string_view text);

}  // namespace modcache::tensor
