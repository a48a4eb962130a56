// SPDX-License-Identifier: Apache-2.0
//
// The test devices of this process: their memory, their streams, and which of them a thread uses.
// A stream is a c10::Stream whose id is the number of its queue; 0 is the default one.
//
// Thread-safe.
#pragma once

#include <c10/core/Stream.h>

#include "memory.h"
#include "work_queue.h"

namespace test_device {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

Memory& memory_of(c10::DeviceIndex device);
// Throws c10::Error where `address` is in no device's memory.
c10::DeviceIndex device_of_address(const void* address);
std::byte* own_address(const void* shown);

WorkQueue& queue_of(const c10::Stream& stream);
c10::Stream default_stream(c10::DeviceIndex device);
// Returns one of a few streams in turn, as CUDA does.
c10::Stream next_stream(c10::DeviceIndex device);
// Waits for all work of all streams.
void synchronize(c10::DeviceIndex device);

// Of the calling thread. An index of -1 means the current device.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);  // throws c10::Error for one that is not there
c10::Stream current_stream(c10::DeviceIndex device);
// Returns the stream of before.
c10::Stream set_current_stream(const c10::Stream& stream);

// A place in a stream's work.
struct Mark {
  WorkQueue* queue = nullptr;
  WorkQueue::Ticket ticket = 0;

  static Mark end_of(const c10::Stream& stream) {
    WorkQueue& queue = queue_of(stream);
    return {&queue, queue.newest()};
  }
  bool is_done() const { return queue == nullptr || queue->is_done(ticket); }
};

}  // namespace test_device
