// SPDX-License-Identifier: Apache-2.0
//
// ByteSamples: a few bytes of each tensor of a list, and where they lie, to notice writes that
// leave no other trace. One place of every tensor is compared at each turn, and one that rotates;
// of tensors that count no versions (made under inference mode) all places, and small ones whole.
//
// Only tensors in the CPU's memory have samples. Keeps no tensor alive: whoever compares answers
// for the tensors still being those that were sampled. Immutable; any thread may ask it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace modcache::module {

class ByteSamples {
 public:
  // How far to look for a place whose gradient is not zero, which is where a step will write.
  enum class Effort { kLow, kHigh };

  // REQUIRES: `index` grows from call to call.
  void add(std::size_t index, const at::Tensor& tensor, Effort effort);

  // The tensor in which this turn's bytes are not what they were, or nothing.
  std::optional<std::size_t> find_change(std::uint64_t turn) const;

  // Compares every place of one tensor.
  bool all_match(std::size_t index) const;

 private:
  static constexpr std::size_t kSampleBytes = 16;
  static constexpr std::size_t kRotating = 7;
  // Of tensors; of more, some wait for a later turn.
  static constexpr std::size_t kMostPerTurn = 4096;
  static constexpr std::size_t kWholeBytes = 4096;

  struct Sample {
    const std::byte* place;
    std::array<std::byte, kSampleBytes> bytes;
    std::uint32_t size_bytes;
    std::uint32_t tensor;

    bool matches() const;
  };
  struct Whole {
    const std::byte* place;
    std::vector<std::byte> bytes;
    std::size_t tensor;

    bool matches() const;
  };
  static Sample sample_at(const std::byte* place, std::size_t size_bytes, std::size_t tensor);
  template <typename Samples>
  static std::optional<std::size_t> find_change_in(const Samples& samples, std::uint64_t turn);

  // By tensor, ascending. Apart, so that a turn walks through two arrays from end to end.
  std::vector<Sample> fixed_;
  std::array<std::vector<Sample>, kRotating> rotating_;
  std::vector<Sample> uncounted_;
  std::vector<Whole> whole_;
};

}  // namespace modcache::module
