// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer's way in. Built once for each target, which MODCACHE_FUZZ_TARGET names.
#include <cstddef>
#include <cstdint>

#include "base/log.h"
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  modcache::set_log_level(modcache::LogLevel::kOff);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  modcache::fuzz::MODCACHE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
