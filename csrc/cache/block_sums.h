// SPDX-License-Identifier: Apache-2.0
//
// Two sums of each block of a row of floats, from which samples of inputs are made
// (cache/input_sample.h): the projection, which is the sum of the elements, each times a fixed
// weight, and the magnitude, which is the sum of their absolute values.
//
// Knows no tensors. Pure; no function throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace modcache::cache {

inline constexpr std::size_t kMostBlockElements = 64;

struct FloatBlock {
  const float* elements = nullptr;
  std::size_t count = 0;  // kMostBlockElements at most
};

// The sums of one tensor's blocks, each kind side by side so that four are added up at once.
struct BlockSums {
  static constexpr std::size_t kMost = 16;

  std::size_t count = 0;
  // The first `count` of each are set.
  std::array<float, kMost> projections;  // of the finite elements, as magnitudes are
  std::array<float, kMost> magnitudes;
  float mean_magnitude = 0;
  // Which blocks have infinities or NaN: bit i stands for block i. Their special_hashes are set,
  // and tell which elements these are.
  std::uint32_t specials = 0;
  std::array<std::uint16_t, kMost> special_hashes;
};

// REQUIRES: 0 < count <= BlockSums::kMost.
void sum_blocks(const FloatBlock* blocks, std::size_t count, BlockSums& sums);

}  // namespace modcache::cache
