// SPDX-License-Identifier: Apache-2.0
//
// Describes how a result differs from the stored one, for the mode `verify`.
#pragma once

#include <string>

#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// Returns an empty text when the values are equal within the tolerance. That applies to
// floating-point numbers; everything else must be equal, and NaN equals NaN.
std::string difference(const Flat& fresh, const Flat& stored, const Tolerance& tolerance);

}  // namespace modcache::tensor
