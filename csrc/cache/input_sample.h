// SPDX-License-Identifier: Apache-2.0
//
// A bounded sample of an input's values, which is stored with an entry so that one key for two
// inputs is noticed. MeasuredInput is computed from the input of a call. InputSample is the part of
// it that is stored (FORMAT.md has its bytes).
//
// Floats are summed in blocks. The sample has one projection of each block: the sum of its
// elements, each times a fixed weight. Two blocks match when their projections differ by no more
// than rounding to bfloat16 can cause, so features that were stored narrowed, or computed in
// another batch, match. All other values are one hash, and match when they are equal.
//
// Knows no tensors: tensor/input_sampler.h reads them. Values only; no function throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace modcache::cache {

class InputSample {
 public:
  static constexpr std::size_t kMaxBytes = 56;

  // An empty sample matches every input.
  InputSample() = default;
  // Bytes of an impossible size make an empty sample.
  explicit InputSample(std::string_view bytes);

  std::string_view bytes() const { return {bytes_.data(), size_bytes_}; }
  bool empty() const { return size_bytes_ == 0; }

 private:
  std::array<char, kMaxBytes> bytes_{};
  std::uint8_t size_bytes_ = 0;
};

struct FloatBlock {
  const float* elements = nullptr;
  std::size_t count = 0;  // at most MeasuredInput::kMaxBlockElements
};

class MeasuredInput {
 public:
  static constexpr std::size_t kMaxBlocks = 24;
  static constexpr std::size_t kMaxBlockElements = 64;

  // Adds the blocks of one tensor, which differ in size by at most one element. Ignores blocks
  // beyond kMaxBlocks.
  void add_floats(std::span<const FloatBlock> blocks);
  // Adds bytes that must be equal.
  void add_exact(const void* bytes, std::size_t size_bytes);

  // Returns the sample to store; an empty one if nothing was added.
  InputSample sample() const;
  // Returns whether an entry with this sample may have been computed from this input. An empty
  // sample matches, and every sample if nothing was added. One of another size does not.
  bool matches(std::string_view sample) const;

 private:
  std::size_t size_bytes() const;

  bool is_empty_ = true;
  std::size_t num_blocks_ = 0;
  std::uint64_t exact_hash_ = 0;
  std::array<float, kMaxBlocks> projections_;  // the first num_blocks_ are set
  std::array<float, kMaxBlocks> tolerances_;
};

// The input of a call, or of a batch, whose rows can be measured. Used by one thread.
class InputSource {
 public:
  virtual ~InputSource() = default;
  // Returns an empty measure, which matches every sample, for an input that cannot be read.
  virtual MeasuredInput measure(std::size_t row) const = 0;
  // Whether measuring waits for an accelerator.
  virtual bool is_costly() const = 0;
};

}  // namespace modcache::cache
