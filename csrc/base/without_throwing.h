// SPDX-License-Identifier: Apache-2.0
//
// For threads of ours, where an exception would end the process of the caller.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/status.h"

namespace modcache {

// What `work` returns, a Status or a Result; kNoSpace where memory, or another thing that the
// standard library throws for, was not to be had.
template <typename Work>
auto without_throwing(Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    return Status::no_space(error.what());
  }
}

}  // namespace modcache
