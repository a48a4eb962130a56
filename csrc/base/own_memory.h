// SPDX-License-Identifier: Apache-2.0
//
// Reads this process's own memory through the kernel, for memory that another thread may unmap at
// any moment: that is an error here, and not a crash. Several times slower than reading it
// directly.
#pragma once

#include <cstddef>

namespace modcache {

// Copies `size_bytes` from `from` to `to`. Returns false when some of the memory at `from` is not
// mapped, or when the kernel forbids the process to read itself this way; `to` may then hold
// anything. Any thread may call it.
bool copy_own_memory(const std::byte* from, std::size_t size_bytes, std::byte* to);

}  // namespace modcache
