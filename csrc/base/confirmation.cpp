// SPDX-License-Identifier: Apache-2.0
#include "base/confirmation.h"

#include <chrono>
#include <thread>

namespace modcache {

// An exchange and not a load: it is ordered before or after the beginning of a check, never during
// it.
bool Confirmation::takes_more() {
  State open = State::kOpen;
  return state_.compare_exchange_strong(open, State::kOpen);
}

bool Confirmation::settle(const Evidence& evidence) {
  State open = State::kOpen;
  if (state_.compare_exchange_strong(open, State::kChecking)) {
    state_.store(evidence.holds() ? State::kConfirmed : State::kRefuted, std::memory_order_release);
  }
  // Polling is enough here: two threads settle one Confirmation only while the setting `dir` is
  // being changed and two directories have results of the same runs to write.
  while (state() == State::kChecking) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return is_confirmed();
}

}  // namespace modcache
