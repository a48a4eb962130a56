// SPDX-License-Identifier: Apache-2.0
//
// How a result differs from the one that is stored: what the mode `verify` reports.
#pragma once

#include <string>

#include "tensor/tree.h"

namespace modcache::tensor {

// Empty: none beyond the tolerance. Numbers may differ by `rtol` times the largest one of their
// tensor; everything else is to be equal, NaN to NaN.
std::string difference(const Flat& fresh, const Flat& stored, double rtol);

}  // namespace modcache::tensor
