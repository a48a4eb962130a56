// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/confirmation.h"

namespace modcache::module {

// ContentChunks: all bytes of a list of tensors in the CPU's memory, as chunks of 64 KiB with a
// hash each, so that they can be compared again part by part.
//
// Keeps no tensor alive: the caller of a comparison must make sure that the memory still exists.
// Immutable once it is filled; any thread may ask it.
class ContentChunks {
 public:
  static constexpr std::size_t kChunkBytes = 64 << 10;

  // While it is being filled, `index` must not decrease. Adds a piece of dense memory; the pieces
  // of a tensor follow each other. REQUIRES: size_bytes <= kChunkBytes.
  void add_dense(std::size_t index, const std::byte* place, std::size_t size_bytes);
  // Adds all of a tensor in the CPU's memory, dense or with gaps. Other tensors get no chunks.
  void add(std::size_t index, const at::Tensor& tensor);
  // Adds a tensor as it is in `other`. REQUIRES: it has not changed since.
  void add_from(const ContentChunks& other, std::size_t index);

  // The amount to read. Memory with gaps counts more than its size, since it is slower.
  std::size_t size_bytes() const { return size_bytes_; }
  bool has_gaps() const { return !strided_.empty(); }

  std::size_t count() const { return chunks_.size(); }
  // Returns the chunk that contains this byte of size_bytes().
  std::size_t chunk_at(std::size_t byte) const;
  std::size_t tensor_of(std::size_t chunk) const { return chunks_[chunk].tensor; }
  std::size_t end_of(std::size_t chunk) const { return chunks_[chunk].begin + chunks_[chunk].cost; }

  // Reads the chunk directly. REQUIRES: its memory exists.
  bool matches(std::size_t chunk) const;
  bool all_match() const;
  // Does the same through the kernel, several times slower. Memory that another thread frees
  // meanwhile does not match, where reading it directly would end the process. REQUIRES:
  // !has_gaps(), can_be_read_apart().
  bool all_match_apart() const;
  // Returns whether the kernel lets a process read itself that way.
  static bool can_be_read_apart();

 private:
  struct Strided {
    const std::byte* place = nullptr;
    std::size_t element_bytes = 0;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // in elements
  };
  struct Chunk {
    const std::byte* place = nullptr;  // null: the tensor has gaps, see `strided`
    std::uint64_t digest = 0;
    std::size_t begin = 0;  // its offset in size_bytes()
    std::uint32_t cost = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t tensor = 0;
    std::uint32_t strided = 0;      // an index into strided_
    std::size_t first_element = 0;  // its first element in there
  };

  void add_strided(std::size_t index, const at::Tensor& tensor);
  void push(Chunk chunk, std::size_t cost);
  std::uint64_t digest_of(const Chunk& chunk) const;
  static void gather(const Strided& from, std::size_t first, std::size_t count, std::byte* to);

  std::vector<Chunk> chunks_;  // in ascending order of tensors
  std::vector<Strided> strided_;
  std::size_t size_bytes_ = 0;
};

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
