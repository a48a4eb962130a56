// SPDX-License-Identifier: Apache-2.0
//
// Turns exceptions into a Status, for our own threads: an exception there would end the process.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/status.h"

namespace modcache {

// Returns the result of `work`, a Status or a Result. Returns kNoSpace when `work` throws, which
// the standard library does where memory or another resource cannot be had.
template <typename Work>
auto without_throwing(Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    return Status::no_space(error.what());
  }
}

}  // namespace modcache
