// SPDX-License-Identifier: Apache-2.0
//
// The allocators of the test device and of its page-locked memory. Both are as strict as torch's
// rules allow: memory is spoiled when it is freed, unless torch was told that a stream still reads
// it, and the next tensor of its size gets it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace test_device {

// What freed memory is filled with.
constexpr unsigned char kSpoiled = 0xdb;

void record_use(const c10::DataPtr& memory, const c10::Stream& stream);

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);
// Keeps page-locked memory from being reused before all work of the stream so far. REQUIRES:
// is_pinned(address).
void record_pinned_use(const void* address, const c10::Stream& stream);

}  // namespace test_device
