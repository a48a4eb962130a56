// SPDX-License-Identifier: Apache-2.0
//
// How Triton packs a response into the buffer that it gives a cache, as its sources have it
// (src/cache_entry.cc, 2023 to 2026):
//
//     packed ::= u32(number of outputs) output*
//     output ::= u64(bytes that follow) text(name) text(dtype) text(i64*: shape) u64(size) byte*
//     text   ::= u32(size) byte*
//
// Triton unpacks without looking at a bound, so bytes that are not of this form would end the
// server: nothing else is stored, and nothing else is handed out.
#pragma once

#include <string_view>

namespace modcache::triton_cache {

// Returns whether `bytes` are exactly one response that has an output. One without any is what a
// model leaves that failed.
bool is_packed_response(std::string_view bytes);

}  // namespace modcache::triton_cache
