// SPDX-License-Identifier: Apache-2.0
//
// Byte planes: the first bytes of all elements, then all second bytes, and so on ("shuffle").
// Floats of similar size share sign and exponent, so the plane of those bytes compresses well. It
// would not with the bytes of the mantissas in between.
#pragma once

#include <cstddef>

namespace modcache::codec {

inline constexpr std::size_t kMaxPlanes = 16;

// Returns the number of planes for elements of this size: 2, 4, 8 or 16; 1 for any other size.
std::size_t plane_count(std::size_t element_size_bytes);

// Splits `elements` elements: plane k starts at `target + k * elements`. Source and target hold
// `planes * elements` bytes and do not overlap; `planes` is a result of plane_count().
void split_into_planes(const char* source, std::size_t planes, std::size_t elements, char* target);

// The inverse, from planes that may lie anywhere: `sources[k]` has `elements` bytes.
void join_planes(const char* const* sources, std::size_t planes, std::size_t elements,
                 char* target);

}  // namespace modcache::codec
