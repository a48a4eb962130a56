// SPDX-License-Identifier: Apache-2.0
//
// The output of a model as JSON.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace server {

// Tensors become nested lists, tuples lists, dicts objects. A float has the fewest digits that name
// it; one that is not finite is null, as JSON has no word for it. Throws std::runtime_error for
// values of other kinds (complex numbers, objects).
void append_json(std::string& text, const c10::IValue& value);

}  // namespace server
