// SPDX-License-Identifier: Apache-2.0
//
// ByteSamples: a few bytes of each tensor of a list and their addresses, to notice writes that
// leave no other trace. Each turn compares one fixed place of every tensor and one that rotates.
// For tensors that count no versions (made under inference mode) it compares all places, and small
// ones whole.
//
// Only tensors in the CPU's memory have samples. Keeps no tensor alive: the caller of a comparison
// must make sure that the sampled tensors still exist. Immutable once it is filled; any thread may
// ask it.
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
  // How far to search for a place whose gradient is not zero, as a step will write there.
  enum class Effort { kLow, kHigh };

  // REQUIRES: `index` grows from call to call.
  void add(std::size_t index, const at::Tensor& tensor, Effort effort);

  // Returns a tensor whose samples of this turn have changed, or nothing.
  std::optional<std::size_t> find_change(std::uint64_t turn) const;

  // Compares every place of one tensor.
  bool all_match(std::size_t index) const;

 private:
  static constexpr std::size_t kSampleBytes = 16;
  static constexpr std::size_t kRotating = 7;
  // The most tensors that a turn compares; further ones wait for a later turn.
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

  // The samples are in ascending order of tensors. The arrays are separate, so that a turn reads
  // two of them from end to end.
  std::vector<Sample> fixed_;
  std::array<std::vector<Sample>, kRotating> rotating_;
  std::vector<Sample> uncounted_;
  std::vector<Whole> whole_;
};

}  // namespace modcache::module
