// SPDX-License-Identifier: Apache-2.0
#include "cache/block_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace modcache::cache {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000;

using Lanes = float __attribute__((vector_size(16)));
using Bits = std::uint32_t __attribute__((vector_size(16)));
constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);
static_assert(BlockSums::kMost % kLanes == 0, "groups of blocks are written as a whole");

Lanes lanes_at(const float* elements) {
  Lanes lanes;
  std::memcpy(&lanes, elements, sizeof lanes);
  return lanes;
}

Lanes magnitudes_of(Lanes lanes) {
  constexpr std::uint32_t kNoSign = 0x7fffffff;
  Bits bits;
  std::memcpy(&bits, &lanes, sizeof bits);
  bits &= Bits{kNoSign, kNoSign, kNoSign, kNoSign};
  std::memcpy(&lanes, &bits, sizeof lanes);
  return lanes;
}

float sum_of(Lanes lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

// Between 1/2 and 1, seven of ten positive: a block that is lighter or darker as a whole shows, and
// so do two elements that changed places. Never changes: projections on disk were made with these.
constexpr std::array<float, kMostBlockElements> make_weights() {
  std::array<float, kMostBlockElements> weights{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    std::uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
    bits ^= bits >> 31;
    const float size = 0.5F + static_cast<float>(bits & 0xff) / 512;
    weights[i] = ((bits >> 8) & 0xff) < 179 ? size : -size;
  }
  return weights;
}
constexpr std::array<float, kMostBlockElements> kWeights = make_weights();

bool is_special(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return (bits & kExponent) == kExponent;
}

// Four blocks side by side: the weights are read once for all, and no addition waits for the one
// before it. Compilers do not make vectors of such a loop over arrays. Returns the magnitudes.
Lanes sum_group(const FloatBlock* blocks, float* projections, float* magnitudes) {
  Lanes projection[kLanes] = {};
  Lanes magnitude[kLanes] = {};
  std::size_t shortest = blocks[0].count;
  std::size_t longest = blocks[0].count;
  for (std::size_t b = 1; b < kLanes; ++b) {
    shortest = std::min(shortest, blocks[b].count);
    longest = std::max(longest, blocks[b].count);
  }
  std::size_t i = 0;
  for (; i + kLanes <= shortest; i += kLanes) {
    const Lanes weights = lanes_at(kWeights.data() + i);
    for (std::size_t b = 0; b < kLanes; ++b) {
      const Lanes four = lanes_at(blocks[b].elements + i);
      projection[b] += four * weights;
      magnitude[b] += magnitudes_of(four);
    }
  }
  for (std::size_t b = 0; b < kLanes; ++b) {
    projections[b] = sum_of(projection[b]);
    magnitudes[b] = sum_of(magnitude[b]);
  }
  for (std::size_t b = 0; i < longest && b < kLanes; ++b) {
    for (std::size_t rest = i; rest < blocks[b].count; ++rest) {
      projections[b] += kWeights[rest] * blocks[b].elements[rest];
      magnitudes[b] += std::fabs(blocks[b].elements[rest]);
    }
  }
  return lanes_at(magnitudes);
}

// All NaNs are one.
void sum_without_specials(const FloatBlock& block, std::size_t place, BlockSums& sums) {
  std::uint32_t hash = 2166136261U;
  float projection = 0;
  float magnitude = 0;
  for (std::size_t i = 0; i < block.count; ++i) {
    const float element = block.elements[i];
    std::uint32_t kind = 0;
    if (is_special(element)) {
      kind = std::isnan(element) ? 1 : element > 0 ? 2 : 3;
    } else {
      projection += kWeights[i] * element;
      magnitude += std::fabs(element);
    }
    hash = (hash ^ (kind + 4 * static_cast<std::uint32_t>(i))) * 16777619U;
  }
  sums.specials |= 1U << place;
  sums.projections[place] = projection;
  sums.magnitudes[place] = magnitude;
  sums.special_hashes[place] = static_cast<std::uint16_t>(hash ^ (hash >> 16));
}

// Rare, so that it may take its time.
void sum_without_specials(const FloatBlock* blocks, BlockSums& sums) {
  float mean = 0;
  for (std::size_t i = 0; i < sums.count; ++i) {
    if (is_special(sums.magnitudes[i])) sum_without_specials(blocks[i], i, sums);
    mean += sums.magnitudes[i] / static_cast<float>(sums.count);
  }
  sums.mean_magnitude = mean;
}

}  // namespace

void sum_blocks(const FloatBlock* blocks, std::size_t count, BlockSums& sums) {
  sums.count = count;
  sums.specials = 0;
  // Each magnitude is divided first, so that the mean of large ones does not overflow.
  const float share = 1.0F / static_cast<float>(count);
  Lanes means = {};
  std::size_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    means += share * sum_group(blocks + first, &sums.projections[first], &sums.magnitudes[first]);
  }
  sums.mean_magnitude = sum_of(means);
  if (first < count) {
    std::array<FloatBlock, kLanes> group;
    group.fill(blocks[count - 1]);  // in the place of those that are missing, and not counted
    std::copy(blocks + first, blocks + count, group.begin());
    sum_group(group.data(), &sums.projections[first], &sums.magnitudes[first]);
    for (; first < count; ++first) sums.mean_magnitude += share * sums.magnitudes[first];
  }
  if (is_special(sums.mean_magnitude)) sum_without_specials(blocks, sums);
}

}  // namespace modcache::cache
