// SPDX-License-Identifier: Apache-2.0
//
// WatchedContents: that no byte of a list of tensors in the CPU's memory changes unnoticed, also by
// writes that leave no trace (`.data`, a NumPy view, a raw pointer). Two promises:
//
//  - Calls read on through all bytes, kBytesPerSecond of the time in which they come and at most
//    kMostBytesPerCall each, and so notice any write after one turn at the latest.
//  - What a run computed is kept for good only once all bytes were found unchanged after it: at
//    once, where reading them is quick beside the run, otherwise for many runs together.
//
// Keeps no tensor alive, but for evidence (base/confirmation.h), which holds their memory while
// results wait for a check. Thread-safe without locks held, and usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/confirmation.h"
#include "module/content_chunks.h"

namespace modcache::module {

class WatchedContents {
 public:
  // Costs about 1.5 % of one core.
  static constexpr std::int64_t kBytesPerSecond = 128 << 20;
  static constexpr std::int64_t kMostBytesPerCall = 4 << 20;

  WatchedContents();
  ~WatchedContents();
  WatchedContents(const WatchedContents&) = delete;
  WatchedContents& operator=(const WatchedContents&) = delete;

  // While it is made.
  ContentChunks& chunks() { return *chunks_; }
  void keep_in_view(const at::Tensor& tensor);

  // A tensor in the part whose turn it is that is not what it was. REQUIRES: the tensors are there.
  std::optional<std::size_t> find_change() const;
  // Whether any check has failed.
  bool is_refuted() const;

  // What is to become of the result of a run that has just ended.
  struct Verdict {
    bool is_changed = false;  // it must not be kept
    // Else: with this, which settles later; null: for good. The evidence is to be held until the
    // result was stored.
    ConfirmationPtr confirmation;
    EvidencePtr evidence;
  };
  Verdict judge_run(std::int64_t run_us) const;

  // `fresh` takes this one's place. What was stored since the last check is right if the contents
  // were found to be the same by reading all of them, and stays open where some were not read.
  // Where they are others, and nothing is left of the old ones to look at, it is refuted.
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
  // Of runs that no check has settled. Guarded by a mutex of all objects of this class.
  mutable std::vector<ConfirmationPtr> open_;
  mutable std::weak_ptr<const Memory> memory_;
};

}  // namespace modcache::module
