// SPDX-License-Identifier: Apache-2.0
//
// The test device (tests/support/test_device) as tests of modcache_torch_device_tests use it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace modcache::testing {

inline const c10::Device kDevice{c10::DeviceType::PrivateUse1, 0};

template <typename... Arguments>
void call_test_device(const char* name, Arguments... arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<void(Arguments...)>().call(
      arguments...);
}

// While it lives, each piece of the device's work is put off by some time.
class SlowedDown {
 public:
  explicit SlowedDown(std::int64_t delay_us) {
    call_test_device("test_device::set_delay_us", delay_us);
  }
  ~SlowedDown() { call_test_device("test_device::set_delay_us", std::int64_t{0}); }
  SlowedDown(const SlowedDown&) = delete;
  SlowedDown& operator=(const SlowedDown&) = delete;
};

// While it lives, `stream` does nothing that was not there before: who does not wait reads too
// early, in every run. Who waits never returns.
class HeldBack {
 public:
  explicit HeldBack(const c10::Stream& stream) {
    const c10::StreamGuard guard(stream);
    call_test_device("test_device::hold");
  }
  ~HeldBack() { call_test_device("test_device::release"); }
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;
};

inline c10::Stream current_stream() {
  return c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice);
}
inline c10::Stream other_stream() {
  return c10::impl::VirtualGuardImpl(kDevice.type()).getNewStream(kDevice);
}
inline void synchronize() { c10::impl::VirtualGuardImpl(kDevice.type()).synchronizeDevice(0); }

}  // namespace modcache::testing
