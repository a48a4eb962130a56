// SPDX-License-Identifier: Apache-2.0
//
// WatchedContents: makes sure that no byte of a list of tensors in the CPU's memory changes
// unnoticed, also by writes that leave no trace (`.data`, a NumPy view, a raw pointer). It makes
// two promises:
//
//  - Calls read all bytes in turn, at most kBytesPerSecond over time and kMostBytesPerCall per
//    call, so that any write is noticed after one turn at the latest.
//  - A run's result is stored for good only after all bytes were found unchanged after the run: at
//    once, where reading them is quick compared with the run, otherwise for many runs together.
//
// Keeps no tensor alive, except for evidence (base/confirmation.h), which holds their memory while
// results wait for a check. Thread-safe; no lock is held while bytes are read. Usable in a forked
// child.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/confirmation.h"
#include "module/watch/content_chunks.h"

namespace modcache::module {

class WatchedContents {
 public:
  // This rate costs about 1.5 % of one core.
  static constexpr std::int64_t kBytesPerSecond = 128 << 20;
  static constexpr std::int64_t kMostBytesPerCall = 4 << 20;

  WatchedContents();
  ~WatchedContents();
  WatchedContents(const WatchedContents&) = delete;
  WatchedContents& operator=(const WatchedContents&) = delete;

  // For filling it, before others use it.
  ContentChunks& chunks() { return *chunks_; }
  void keep_in_view(const at::Tensor& tensor);

  // Reads on, and returns a tensor that has changed, if there is one in the part that was read.
  // REQUIRES: the tensors exist.
  std::optional<std::size_t> find_change() const;
  // Returns whether any check has failed.
  bool is_refuted() const;

  // Says how to store the result of a run that has just ended.
  struct Verdict {
    bool is_changed = false;  // the result must not be stored
    // Otherwise: the Confirmation to store it with, which is settled later; null when it may be
    // stored for good. The caller holds the evidence until the result was stored.
    ConfirmationPtr confirmation;
    EvidencePtr evidence;
  };
  Verdict judge_run(std::int64_t run_us) const;

  // Call it when `fresh` replaces this object. Results that were stored since the last check are
  // confirmed if all contents were read and found the same (kSame), and stay open if some were not
  // read. If the contents differ, and nothing of the old ones is left to check, they are refuted.
  enum class Found { kSame, kSameAsFarAsRead, kOther };
  void hand_over_to(const WatchedContents& fresh, Found found) const;

 private:
  struct Pace;
  class Memory;

  std::shared_ptr<const Memory> memory() const;
  ConfirmationPtr open_confirmation(const std::shared_ptr<const Memory>& memory) const;
  std::vector<ConfirmationPtr> take_open() const;

  struct Place {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
  };

  const std::shared_ptr<ContentChunks> chunks_;
  const std::shared_ptr<Pace> pace_;
  std::vector<Place> places_;
  mutable std::atomic<std::int64_t> read_until_ns_;
  mutable std::atomic<std::uint64_t> position_{0};
  // Confirmations of runs that no check has settled. One mutex guards them for all objects of this
  // class.
  mutable std::vector<ConfirmationPtr> open_;
  mutable std::weak_ptr<const Memory> memory_;
};

}  // namespace modcache::module
