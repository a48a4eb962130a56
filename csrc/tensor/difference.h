// SPDX-License-Identifier: Apache-2.0
//
// How a result differs from the one that is stored: what the mode `verify` reports.
#pragma once

#include <string>

#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

// Empty: none beyond the tolerance, which is for floating numbers; everything else is to be equal,
// NaN to NaN.
std::string difference(const Flat& fresh, const Flat& stored, const Tolerance& tolerance);

}  // namespace modcache::tensor
