// SPDX-License-Identifier: Apache-2.0
//
// The output of a model as JSON.
#pragma once

#include <ATen/core/ivalue.h>

#include <nlohmann/json.hpp>

namespace server {

// Tensors become nested lists, tuples lists, and dicts objects. NaN and infinity, which JSON does
// not have, are printed as null. Throws HttpError for types that JSON does not have.
nlohmann::json output_json(const c10::IValue& value);

}  // namespace server
