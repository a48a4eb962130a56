// SPDX-License-Identifier: Apache-2.0
#include "cache/input_sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace modcache::cache {
namespace {

constexpr std::uint8_t kSampleVersion = 1;
constexpr std::size_t kCodeBytes = 2;
constexpr std::size_t kExactBytes = 8;
static_assert(1 + MeasuredInput::kMostBlocks * kCodeBytes + kExactBytes <= InputSample::kMostBytes);

// Rounding to bfloat16 changes each element by at most 2^-8 of itself, and the projection, which is
// kept as one, by as much once more: 2^-7 of the magnitude. The rest is for sums that were added up
// in another order.
constexpr float kOfMagnitude = 1.0F / 96;
// A block of zeros may differ by this share of the tensor's mean block, because values that cancel
// out keep the last bits of larger ones.
constexpr float kOfMean = 1.0F / 16384;
// Rounding to float16 changes the smallest elements by up to this, which is counted up to a share
// of the tensor's mean block: a tensor of tiny numbers alone is no other one's equal.
constexpr float kHalfOfSmallestFloat16 = 1.0F / 33554432.0F;
constexpr float kMostForSmallest = 1.0F / 16;

constexpr std::uint32_t kExponent = 0x7f800000;
constexpr std::uint16_t kExponentOfCode = 0x7f80;

using Lanes = float __attribute__((vector_size(16)));
using Bits = std::uint32_t __attribute__((vector_size(16)));
constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);

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

std::uint32_t bits_of(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

bool is_special(float number) { return (bits_of(number) & kExponent) == kExponent; }

// Rare, so that it may take its time. All NaNs are one.
BlockSum sum_without_specials(const float* elements, std::size_t count) {
  BlockSum sum;
  sum.has_special = true;
  std::uint32_t hash = 2166136261U;
  for (std::size_t i = 0; i < count; ++i) {
    const float element = elements[i];
    std::uint32_t kind = 0;
    if (is_special(element)) {
      kind = std::isnan(element) ? 1 : element > 0 ? 2 : 3;
    } else {
      sum.projection += kWeights[i] * element;
      sum.magnitude += std::fabs(element);
    }
    hash = (hash ^ (kind + 4 * static_cast<std::uint32_t>(i))) * 16777619U;
  }
  sum.special_hash = static_cast<std::uint16_t>(hash ^ (hash >> 16));
  return sum;
}

// The nearest bfloat16; the largest where that would be an infinity.
std::uint16_t code_of(float projection) {
  const std::uint32_t bits = bits_of(projection);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const auto code = static_cast<std::uint16_t>(rounded >> 16);
  return (code & kExponentOfCode) == kExponentOfCode ? static_cast<std::uint16_t>(code - 1) : code;
}

float projection_of(std::uint16_t code) {
  const std::uint32_t bits = std::uint32_t{code} << 16;
  float projection = 0;
  std::memcpy(&projection, &bits, sizeof projection);
  return projection;
}

// A code whose exponent is that of infinities stands for itself.
bool is_exact(std::uint16_t code) { return (code & kExponentOfCode) == kExponentOfCode; }

std::uint16_t special_code(std::uint16_t hash) {
  return static_cast<std::uint16_t>(kExponentOfCode | (hash & 0x807f));
}

std::uint16_t read_code(const char* bytes) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[0]) |
                                    static_cast<unsigned char>(bytes[1]) << 8);
}

}  // namespace

InputSample::InputSample(std::string_view bytes) {
  if (bytes.size() > kMostBytes) return;
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  size_bytes_ = static_cast<std::uint8_t>(bytes.size());
}

// Eight sums side by side, in vectors that every machine has: compilers do not make them of a loop
// over arrays.
BlockSum sum_of_block(const float* elements, std::size_t count) {
  Lanes projections[2] = {};
  Lanes magnitudes[2] = {};
  std::size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (std::size_t part = 0; part < 2; ++part) {
      const Lanes four = lanes_at(elements + i + part * kLanes);
      projections[part] += four * lanes_at(kWeights.data() + i + part * kLanes);
      magnitudes[part] += magnitudes_of(four);
    }
  }
  const Lanes projection = projections[0] + projections[1];
  const Lanes magnitude = magnitudes[0] + magnitudes[1];
  BlockSum sum;
  sum.projection = (projection[0] + projection[2]) + (projection[1] + projection[3]);
  sum.magnitude = (magnitude[0] + magnitude[2]) + (magnitude[1] + magnitude[3]);
  for (; i < count; ++i) {
    sum.projection += kWeights[i] * elements[i];
    sum.magnitude += std::fabs(elements[i]);
  }
  return is_special(sum.magnitude) ? sum_without_specials(elements, count) : sum;
}

void MeasuredInput::add_blocks(const BlockSum* sums, std::size_t count, std::size_t elements) {
  float total = 0;
  for (std::size_t i = 0; i < count; ++i) total += sums[i].magnitude / static_cast<float>(count);
  const float of_all =
      total * kOfMean +
      std::min(static_cast<float>(elements) * kHalfOfSmallestFloat16, total * kMostForSmallest);
  for (std::size_t i = 0; i < count; ++i) {
    const BlockSum& sum = sums[i];
    Block& block = block_[blocks_++];
    block.projection = sum.projection;
    block.tolerance = sum.magnitude * kOfMagnitude + of_all;
    block.code = sum.has_special ? special_code(sum.special_hash) : code_of(sum.projection);
  }
}

std::size_t MeasuredInput::size_bytes() const {
  return empty() ? 0 : 1 + blocks_ * kCodeBytes + (has_exact_ ? kExactBytes : 0);
}

InputSample MeasuredInput::sample() const {
  std::array<char, InputSample::kMostBytes> bytes{};
  if (empty()) return {};
  char* next = bytes.data();
  *next++ = static_cast<char>(kSampleVersion);
  for (std::size_t i = 0; i < blocks_; ++i) {
    *next++ = static_cast<char>(block_[i].code & 0xff);
    *next++ = static_cast<char>(block_[i].code >> 8);
  }
  for (std::size_t i = 0; has_exact_ && i < kExactBytes; ++i) {
    *next++ = static_cast<char>((exact_ >> (8 * i)) & 0xff);
  }
  return InputSample({bytes.data(), size_bytes()});
}

bool MeasuredInput::agrees_with(std::string_view sample) const {
  if (sample.empty() || static_cast<std::uint8_t>(sample[0]) != kSampleVersion) return true;
  if (sample.size() != size_bytes()) return false;
  const char* next = sample.data() + 1;
  bool agrees = true;
  for (std::size_t i = 0; i < blocks_; ++i, next += kCodeBytes) {
    const Block& block = block_[i];
    const std::uint16_t stored = read_code(next);
    const float difference = std::fabs(projection_of(stored) - block.projection);
    // A stored code that stands for itself makes the difference no number, and so no agreement.
    const bool is_near = difference <= block.tolerance && !is_exact(block.code);
    agrees &= is_near || stored == block.code;
  }
  std::uint64_t exact = 0;
  for (std::size_t i = kExactBytes; has_exact_ && i-- > 0;) {
    exact = (exact << 8) | static_cast<unsigned char>(next[i]);
  }
  return agrees && (!has_exact_ || exact == exact_);
}

}  // namespace modcache::cache
