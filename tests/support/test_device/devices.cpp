// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>

namespace test_device {
namespace {

constexpr std::size_t kMemoryBytes = std::size_t{8} << 30;  // addresses; pages come when written
constexpr c10::StreamId kStreams = 9;                       // the default one and eight others

struct Device {
  Memory memory{kMemoryBytes};
  std::atomic<c10::StreamId> streams_given{0};
  std::mutex mutex;
  std::array<std::unique_ptr<WorkQueue>, kStreams> queues;  // each made when it is first used

  WorkQueue& queue(c10::StreamId id) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& found = queues.at(static_cast<std::size_t>(id));
    if (found == nullptr) found = std::make_unique<WorkQueue>();
    return *found;
  }
};

using Devices = std::array<Device, kDevices>;

// Never destroyed: threads and tensors outlive the globals of this library.
Devices& devices() {
  static Devices& all = *new Devices;
  return all;
}

Device& device_at(c10::DeviceIndex index) { return devices().at(static_cast<std::size_t>(index)); }

thread_local c10::DeviceIndex g_current_device = 0;
thread_local std::array<c10::StreamId, kDevices> g_current_streams{};

c10::DeviceIndex checked(c10::DeviceIndex device) {
  TORCH_CHECK(device < kDevices, "there is no test device ", static_cast<int>(device),
              "; valid are 0 to ", static_cast<int>(kDevices) - 1);
  return device < 0 ? g_current_device : device;
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

}  // namespace

Memory& memory_of(c10::DeviceIndex device) { return device_at(checked(device)).memory; }

c10::DeviceIndex device_of_address(const void* address) {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    if (memory_of(device).has(address)) return device;
  }
  TORCH_CHECK(false, "no test device has the address ", address);
}

std::byte* own_address(const void* shown) { return memory_of(device_of_address(shown)).own(shown); }

WorkQueue& queue_of(const c10::Stream& stream) {
  return device_at(stream.device_index()).queue(stream.id());
}

c10::Stream default_stream(c10::DeviceIndex device) { return stream_of(checked(device), 0); }

c10::Stream next_stream(c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked(device);
  return stream_of(index, 1 + device_at(index).streams_given++ % (kStreams - 1));
}

void synchronize(c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked(device);
  for (c10::StreamId id = 0; id < kStreams; ++id) {
    const c10::Stream stream = stream_of(index, id);
    queue_of(stream).wait(queue_of(stream).newest());
  }
}

c10::DeviceIndex current_device() { return g_current_device; }

void set_current_device(c10::DeviceIndex device) { g_current_device = checked(device); }

c10::Stream current_stream(c10::DeviceIndex device) {
  const c10::DeviceIndex index = checked(device);
  return stream_of(index, g_current_streams.at(static_cast<std::size_t>(index)));
}

c10::Stream set_current_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  g_current_streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}

}  // namespace test_device
