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

constexpr std::uint16_t kExponentOfCode = 0x7f80;

std::uint32_t bits_of(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
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

void MeasuredInput::add_blocks(const BlockSums& sums, std::size_t elements) {
  const float of_all = sums.mean_magnitude * kOfMean +
                       std::min(static_cast<float>(elements) * kHalfOfSmallestFloat16,
                                sums.mean_magnitude * kMostForSmallest);
  float* const projections = projections_.data() + blocks_;
  float* const tolerances = tolerances_.data() + blocks_;
  for (std::size_t i = 0; i < sums.count; ++i) {
    projections[i] = sums.projections[i];
    tolerances[i] = sums.magnitudes[i] * kOfMagnitude + of_all;
  }
  if (sums.specials != 0 && !has_specials_) {
    special_codes_.fill(0);
    has_specials_ = true;
  }
  for (std::size_t i = 0; has_specials_ && i < sums.count; ++i) {
    const bool is_special = ((sums.specials >> i) & 1) != 0;
    special_codes_[blocks_ + i] = is_special ? special_code(sums.special_hashes[i]) : 0;
  }
  blocks_ = static_cast<std::uint8_t>(blocks_ + sums.count);
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
    const std::uint16_t code = code_of_block(i);
    *next++ = static_cast<char>(code & 0xff);
    *next++ = static_cast<char>(code >> 8);
  }
  for (std::size_t i = 0; has_exact_ && i < kExactBytes; ++i) {
    *next++ = static_cast<char>((exact_ >> (8 * i)) & 0xff);
  }
  return InputSample({bytes.data(), size_bytes()});
}

std::uint16_t MeasuredInput::code_of_block(std::size_t block) const {
  const std::uint16_t special = has_specials_ ? special_codes_[block] : 0;
  return special != 0 ? special : code_of(projections_[block]);
}

// Without branches, so that the compiler compares several at once.
bool MeasuredInput::all_near(const char* codes) const {
  std::uint32_t differing = 0;
  for (std::size_t i = 0; i < blocks_; ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, codes + i * kCodeBytes, sizeof code);
    const float difference = std::fabs(projection_of(code) - projections_[i]);
    // A stored code that stands for itself makes the difference no number, and so not near.
    differing |= static_cast<std::uint32_t>(!(difference <= tolerances_[i]));
  }
  return differing == 0;
}

bool MeasuredInput::all_agree(const char* codes) const {
  bool agrees = true;
  for (std::size_t i = 0; i < blocks_; ++i) {
    const std::uint16_t stored = read_code(codes + i * kCodeBytes);
    const std::uint16_t code = code_of_block(i);
    const float difference = std::fabs(projection_of(stored) - projections_[i]);
    const bool is_near = difference <= tolerances_[i] && !is_exact(code);
    agrees &= is_near || stored == code;
  }
  return agrees;
}

bool MeasuredInput::agrees_with(std::string_view sample) const {
  if (sample.empty() || static_cast<std::uint8_t>(sample[0]) != kSampleVersion) return true;
  if (sample.size() != size_bytes()) return false;
  const char* const codes = sample.data() + 1;
  if ((has_specials_ || !all_near(codes)) && !all_agree(codes)) return false;
  if (!has_exact_) return true;
  std::uint64_t exact = 0;
  for (std::size_t i = kExactBytes; i-- > 0;) {
    exact = (exact << 8) | static_cast<unsigned char>(codes[blocks_ * kCodeBytes + i]);
  }
  return exact == exact_;
}

}  // namespace modcache::cache
