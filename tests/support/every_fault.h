// SPDX-License-Identifier: Apache-2.0
//
// Which calls fail in turn, and of what: for tests that live through the same again and again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "support/faults.h"

namespace modcache::testing {

// Of `calls` that there are, the first is 1: one of each of some `sample` stretches of the same
// length, or all with EVERY_FAULT in the environment. The same ones each time.
inline std::vector<std::int64_t> calls_that_fail(std::int64_t calls, std::int64_t sample) {
  std::int64_t step = 1;
  if (std::getenv("EVERY_FAULT") == nullptr) step = std::max<std::int64_t>(1, calls / sample);
  std::mt19937 random(static_cast<unsigned>(calls));
  std::vector<std::int64_t> failing;
  for (std::int64_t call = 1; call <= calls; call += step) {
    failing.push_back(call +
                      static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(step)));
  }
  return failing;
}

// Every fault that a process lives through, at one call or at all from then on.
using FaultAndForever = std::tuple<Fault, bool>;
inline auto every_fault() {
  return ::testing::Combine(::testing::Values(Fault::kNoSpace, Fault::kIoError, Fault::kShortWrite,
                                              Fault::kBusy, Fault::kCannotOpen, Fault::kNoMemory),
                            ::testing::Bool());
}
inline std::string name_of_fault(const ::testing::TestParamInfo<FaultAndForever>& tested) {
  return std::string(name_of(std::get<0>(tested.param))) +
         (std::get<1>(tested.param) ? "_from_then_on" : "_once");
}

}  // namespace modcache::testing
