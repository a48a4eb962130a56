// SPDX-License-Identifier: Apache-2.0
#include "base/confirmation.h"

#include <chrono>
#include <thread>

namespace modcache {

// A read and write in one: it comes before or after the beginning of a check, never beside it.
bool Confirmation::takes_more() {
  State open = State::kOpen;
  return state_.compare_exchange_strong(open, State::kOpen);
}

bool Confirmation::settle(const Evidence& evidence) {
  State open = State::kOpen;
  if (state_.compare_exchange_strong(open, State::kChecking)) {
    state_.store(evidence.holds() ? State::kConfirmed : State::kRefuted, std::memory_order_release);
  }
  // Two directories at once have one runs' results to write only while `dir` is being changed.
  while (state() == State::kChecking) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return is_confirmed();
}

}  // namespace modcache
