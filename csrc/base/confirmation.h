// SPDX-License-Identifier: Apache-2.0
//
// Confirmation: the verdict on whether the inputs of some runs (weights, for instance) were still,
// after those runs, what they were taken for. Values stored meanwhile are provisional: they are
// written to disk once they are confirmed, and are no longer found once they are refuted.
//
// One Confirmation stands for all runs that ended before its check begins. It does not own its
// evidence: whoever wants a verdict keeps the evidence alive. Thread-safe without locks, so a
// forked child may go on using one that its parent was about to settle.
#pragma once

#include <atomic>
#include <memory>

namespace modcache {

// The state that a check compares. Implemented above this component.
class Evidence {
 public:
  virtual ~Evidence() = default;

  // Returns whether the state is still what it was. May read gigabytes, and may be called from a
  // background thread; never throws.
  virtual bool holds() const = 0;

  // Returns whether a check that nobody waits for should begin now. False when it would cost too
  // much, or when another thread is about to check.
  virtual bool is_due() const = 0;
};
using EvidencePtr = std::shared_ptr<const Evidence>;

class Confirmation {
 public:
  explicit Confirmation(const EvidencePtr& evidence) : evidence_(evidence) {}
  Confirmation(const Confirmation&) = delete;
  Confirmation& operator=(const Confirmation&) = delete;

  bool is_confirmed() const { return state() == State::kConfirmed; }
  bool is_refuted() const { return state() == State::kRefuted; }
  // Null when the evidence is gone, so that no verdict can come any more.
  EvidencePtr evidence() const { return evidence_.lock(); }

  // Returns whether a run that has just ended may be settled together with those before it, which
  // is so until the check begins.
  bool takes_more();

  // Checks `evidence` unless that was done, and waits while another thread checks. Returns whether
  // the verdict is "confirmed".
  bool settle(const Evidence& evidence);

  // Set a verdict without a check; the first verdict stands.
  void confirm() { decide(State::kConfirmed); }
  void refute() { decide(State::kRefuted); }

 private:
  enum class State : int { kOpen, kChecking, kConfirmed, kRefuted };

  State state() const { return state_.load(std::memory_order_acquire); }
  void decide(State verdict) {
    State open = State::kOpen;
    state_.compare_exchange_strong(open, verdict);
  }

  const std::weak_ptr<const Evidence> evidence_;
  std::atomic<State> state_{State::kOpen};
};
using ConfirmationPtr = std::shared_ptr<Confirmation>;

}  // namespace modcache
