// SPDX-License-Identifier: Apache-2.0
//
// What torch asks of every kind of device: which is current, its streams and events; and of an
// accelerator, its page-locked memory.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocators.h"
#include "devices.h"

namespace test_device {
namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return next_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return next_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return set_current_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Mark::end_of(stream).is_done();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const Mark end = Mark::end_of(stream);
    end.queue->wait(end.ticket);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark;
    *static_cast<Mark*>(*event) = Mark::end_of(stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Mark& mark = *static_cast<const Mark*>(event);
    if (mark.queue != nullptr) queue_of(stream).follow(*mark.queue, mark.ticket);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<const Mark*>(event)->is_done();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Mark& mark = *static_cast<const Mark*>(event);
    if (mark.queue != nullptr) mark.queue->wait(mark.ticket);
  }

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_use(memory, stream);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* address) const override {
    return {kType, device_of_address(address)};
  }
  // The device draws its random numbers on the host.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool g_are_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace test_device
