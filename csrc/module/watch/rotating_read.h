// SPDX-License-Identifier: Apache-2.0
//
// RotatingRead: re-reads the bytes of a list of tensors in the CPU's memory in turn, a little at
// each call, and compares them with digests. So a write that left no trace (`.data`, a NumPy view,
// a raw pointer) is found after one turn at the latest.
//
// It reads at most kBytesPerSecond for each second that calls take, which is less than 1 % of their
// time where memory is read at 2 GB/s. Keeps no tensor alive: the caller of find_change() makes
// sure that the memory exists. Filled by one thread; after that thread-safe without locks, and
// usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace modcache::module {

class RotatingRead {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::int64_t kBytesPerSecond = 16 << 20;
  static constexpr std::size_t kChunkBytes = 64 << 10;
  // The time that pays for one chunk. A gap between two calls counts as no more than this.
  static constexpr std::chrono::nanoseconds kChunkTime{1'000'000'000 /
                                                       (kBytesPerSecond / kChunkBytes)};

  explicit RotatingRead(Clock::time_point now = Clock::now())
      : last_read_(now.time_since_epoch()) {}

  // REQUIRES of all that add: `index` does not decrease from call to call.
  // Adds all of a tensor in the CPU's memory. Other tensors are not read.
  void add(std::size_t index, const at::Tensor& tensor);
  // Adds a piece of dense memory. REQUIRES: size_bytes <= kChunkBytes.
  void add_dense(std::size_t index, const std::byte* begin, std::size_t size_bytes);
  // Adds a tensor with the digests of `other`. REQUIRES: it has not changed since.
  void add_from(const RotatingRead& other, std::size_t index);

  // Reads on, and returns a tensor that has changed, if one was read. `run` is the time that a
  // module's run has just taken: it pays for more than a gap between calls does.
  std::optional<std::size_t> find_change(Clock::time_point now, Clock::duration run = {}) const;
  // Returns whether find_change() has found a change before.
  bool has_changed() const { return changed_.load(std::memory_order_relaxed) >= 0; }

  std::size_t num_chunks() const { return chunks_.size(); }
  std::uint64_t num_chunks_read() const { return next_.load(std::memory_order_relaxed); }

 private:
  // The layout of a piece of a tensor with gaps between its elements.
  struct Gaps {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // in bytes
    std::size_t element_bytes = 0;
  };
  struct Chunk {
    const std::byte* begin = nullptr;
    std::uint64_t digest = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t tensor = 0;
    std::int32_t gaps = -1;  // an index into gaps_; -1: dense

    std::int64_t cost() const;
  };

  void add_with_gaps(std::size_t index, const std::byte* begin, Gaps gaps);
  void push(Chunk chunk);
  std::uint64_t digest_of(const Chunk& chunk) const;
  static std::byte* gather(const Gaps& gaps, const std::byte* from, std::size_t dim, std::byte* to);

  std::vector<Chunk> chunks_;  // in ascending order of tensors
  std::vector<Gaps> gaps_;
  std::int64_t total_cost_ = 0;
  mutable std::atomic<Clock::duration> last_read_;  // since the clock's epoch
  mutable std::atomic<std::int64_t> owed_{0};       // bytes; negative: read in advance
  mutable std::atomic<std::uint64_t> next_{0};      // chunks read so far
  mutable std::atomic<std::int64_t> changed_{-1};   // a tensor; -1: none
};

}  // namespace modcache::module
