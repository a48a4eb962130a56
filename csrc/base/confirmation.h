// SPDX-License-Identifier: Apache-2.0
//
// Confirmation: whether what some runs were computed from was, after them, still what it was told
// to be. Values stored meanwhile are provisional: they are written to disk once they are
// confirmed, and are not found any more once they are refuted.
//
// One Confirmation stands for all runs that ended before its check begins. It does not own its
// evidence: whoever wants a verdict keeps that alive. Thread-safe without locks, so a forked child
// may go on using what its parent was about to settle.
#pragma once

#include <atomic>
#include <memory>

namespace modcache {

// What a check looks at.
class Evidence {
 public:
  virtual ~Evidence() = default;

  // Whether it is what it was. May read gigabytes, from a thread of the background; never throws.
  virtual bool holds() const = 0;

  // Whether a check that nobody waits for should begin now. False: it would cost too much, or
  // another thread is about to check.
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
  // Null: nobody keeps it.
  EvidencePtr evidence() const { return evidence_.lock(); }

  // Whether a run that has ended may be settled together with those before it: no check has begun.
  bool takes_more();

  // Checks, unless that was done; waits for another thread that is at it. True: confirmed.
  bool settle(const Evidence& evidence);

  // A verdict without a check of its own; the first one stands.
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
