// SPDX-License-Identifier: Apache-2.0
#include "cache/input_sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/hash.h"

namespace modcache::cache {
namespace {

constexpr std::size_t kCodeBytes = 2;
constexpr std::size_t kHashBytes = 8;
static_assert(MeasuredInput::kMaxBlocks * kCodeBytes + kHashBytes == InputSample::kMaxBytes);

// Rounding to bfloat16 changes each element by up to 2^-8 of itself, and the projection, which is
// stored as bfloat16, by as much again: 2^-7 of the magnitude. The rest is for sums that were added
// in another order.
constexpr float kShareOfBlock = 1.0F / 96;
// Values that cancel out retain the last bits of larger ones, so a block of zeros may differ by
// this share of the tensor's mean block.
constexpr float kShareOfMean = 1.0F / 16384;
// Rounding to float16 changes the smallest elements by up to kFloat16Error. It counts up to a share
// of the mean block, so that tensors of tiny numbers can still differ.
constexpr float kFloat16Error = 0x1p-25F;
constexpr float kMaxShareForFloat16 = 1.0F / 16;
// Smaller projections lose precision as bfloat16.
constexpr float kSmallest = std::numeric_limits<float>::min();
// Larger elements are compared like infinities, as sums of them could overflow.
constexpr float kLargest = 1e30F;

// The weights lie between 1/2 and 1, and three of four are positive: a block that is lighter or
// darker as a whole shows, and so do two elements that changed places. Stored samples depend on
// them (FORMAT.md).
constexpr std::array<float, MeasuredInput::kMaxBlockElements> make_weights() {
  std::array<float, MeasuredInput::kMaxBlockElements> weights{};
  std::uint64_t random = 0;
  for (float& weight : weights) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    weight = 0.5F + static_cast<float>(random >> 56) / 512;
    if ((random >> 40) % 4 == 0) weight = -weight;
  }
  return weights;
}
alignas(16) constexpr auto kWeights = make_weights();

struct Sums {
  float projection = 0;
  float magnitude = 0;  // the sum of the absolute values
};

// Four elements at a time: compilers do not reorder sums of floats by themselves.
using Lanes = float __attribute__((vector_size(16)));
using LaneBits = std::uint32_t __attribute__((vector_size(16)));
constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);

Lanes load(const float* elements) {
  Lanes lanes;
  std::memcpy(&lanes, elements, sizeof lanes);
  return lanes;
}

Lanes magnitudes_of(Lanes lanes) {
  return std::bit_cast<Lanes>(std::bit_cast<LaneBits>(lanes) & 0x7fffffff);
}

[[gnu::always_inline]] inline Sums sum_block(const FloatBlock& block) {
  Lanes projection = {};
  Lanes magnitude = {};
  std::size_t i = 0;
  const auto add_next = [&] {
    const Lanes elements = load(block.elements + i);
    projection += elements * load(kWeights.data() + i);
    magnitude += magnitudes_of(elements);
    i += kLanes;
  };
  while (i + 2 * kLanes <= block.count) {
    add_next();
    add_next();
  }
  if (i + kLanes <= block.count) add_next();
  // Adds up the lanes of both at once.
  const Lanes halves = __builtin_shufflevector(projection, magnitude, 0, 1, 4, 5) +
                       __builtin_shufflevector(projection, magnitude, 2, 3, 6, 7);
  const Lanes sums = halves + __builtin_shufflevector(halves, halves, 1, 0, 3, 2);
  Sums found{sums[0], sums[2]};
  for (; i < block.count; ++i) {
    found.projection += block.elements[i] * kWeights[i];
    found.magnitude += std::fabs(block.elements[i]);
  }
  return found;
}

// Returns the sums without NaN, infinities and elements that are too large for sums. Adds to
// `measured` which elements these are.
Sums sum_ordinary(const FloatBlock& block, std::size_t number, MeasuredInput& measured) {
  std::array<float, MeasuredInput::kMaxBlockElements> ordinary{};
  std::array<char, 1 + MeasuredInput::kMaxBlockElements> kinds{static_cast<char>(number)};
  for (std::size_t i = 0; i < block.count; ++i) {
    const float element = block.elements[i];
    if (std::fabs(element) < kLargest) {
      ordinary[i] = element;
    } else {
      kinds[1 + i] = std::isnan(element) ? '\1' : element > 0 ? '\2' : '\3';
    }
  }
  measured.add_exact(kinds.data(), 1 + block.count);
  return sum_block({ordinary.data(), block.count});
}

std::uint16_t as_bfloat16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float as_float(std::uint16_t bfloat16) {
  return std::bit_cast<float>(std::uint32_t{bfloat16} << 16);
}

}  // namespace

InputSample::InputSample(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) return;
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  size_bytes_ = static_cast<std::uint8_t>(bytes.size());
}

void MeasuredInput::add_floats(std::span<const FloatBlock> blocks) {
  blocks = blocks.first(std::min(blocks.size(), kMaxBlocks - num_blocks_));
  if (blocks.empty()) return;
  is_empty_ = false;
  const std::size_t first = std::exchange(num_blocks_, num_blocks_ + blocks.size());
  float total = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Sums sums = sum_block(blocks[i]);
    const bool is_ordinary = sums.magnitude < kLargest;  // false for NaN
    if (!is_ordinary) sums = sum_ordinary(blocks[i], first + i, *this);
    projections_[first + i] = sums.projection;
    tolerances_[first + i] = sums.magnitude * kShareOfBlock;
    total += sums.magnitude;
  }
  const float mean = total / static_cast<float>(blocks.size());
  const float float16_error = static_cast<float>(blocks.front().count) * kFloat16Error;
  const float for_all =
      kSmallest + mean * kShareOfMean + std::min(float16_error, mean * kMaxShareForFloat16);
  for (std::size_t i = first; i < num_blocks_; ++i) tolerances_[i] += for_all;
}

void MeasuredInput::add_exact(const void* bytes, std::size_t size_bytes) {
  is_empty_ = false;
  exact_hash_ = xxh3_64(bytes, size_bytes, exact_hash_);
}

std::size_t MeasuredInput::size_bytes() const {
  return is_empty_ ? 0 : kHashBytes + num_blocks_ * kCodeBytes;
}

InputSample MeasuredInput::sample() const {
  std::array<char, InputSample::kMaxBytes> bytes;
  std::memcpy(bytes.data(), &exact_hash_, kHashBytes);
  for (std::size_t i = 0; i < num_blocks_; ++i) {
    const std::uint16_t code = as_bfloat16(projections_[i]);
    std::memcpy(bytes.data() + kHashBytes + i * kCodeBytes, &code, kCodeBytes);
  }
  return InputSample({bytes.data(), size_bytes()});
}

bool MeasuredInput::matches(std::string_view sample) const {
  if (sample.empty() || is_empty_) return true;
  if (sample.size() != size_bytes()) return false;
  if (std::memcmp(sample.data(), &exact_hash_, kHashBytes) != 0) return false;
  const char* const codes = sample.data() + kHashBytes;
  // Without branches, so that the compiler compares several blocks at once.
  std::uint32_t differing = 0;
  for (std::size_t i = 0; i < num_blocks_; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, codes + i * kCodeBytes, kCodeBytes);
    const bool is_near = std::fabs(as_float(code) - projections_[i]) <= tolerances_[i];
    differing |= static_cast<std::uint32_t>(!is_near);  // a NaN is never near
  }
  return differing == 0;
}

}  // namespace modcache::cache
