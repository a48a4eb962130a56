// SPDX-License-Identifier: Apache-2.0
//
// This process's own memory, read by way of the kernel: for memory that another thread may give
// back at any moment. Several times slower than reading it.
#pragma once

#include <cstddef>

namespace modcache {

// Fills `size_bytes` at `to`. False: some of the memory at `from` is not there (any more), or the
// kernel forbids a process to read itself so. Any thread.
bool copy_own_memory(const std::byte* from, std::size_t size_bytes, std::byte* to);

}  // namespace modcache
