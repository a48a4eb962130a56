// SPDX-License-Identifier: Apache-2.0
//
// Byte planes: the first bytes of all elements, then the second bytes, and so on ("shuffle").
// Floats of like size share sign and exponent, so their last plane compresses well, which it does
// not where mantissas lie between.
#pragma once

#include <cstddef>

namespace modcache::codec {

inline constexpr std::size_t kMaxPlanes = 16;

// How many planes elements of this size have: 2, 4, 8 or 16; 1 for any other size.
std::size_t plane_count(std::size_t element_size_bytes);

// Plane k goes to `target + k * elements`. Source and target hold `planes * elements` bytes and do
// not overlap; `planes` is a plane_count().
void split_into_planes(const char* source, std::size_t planes, std::size_t elements, char* target);

// The inverse, from planes that may lie anywhere: `sources[k]` has `elements` bytes.
void join_planes(const char* const* sources, std::size_t planes, std::size_t elements,
                 char* target);

}  // namespace modcache::codec
