// SPDX-License-Identifier: Apache-2.0
//
// A bounded sample of an input's values, which an entry keeps so that one key for two inputs is
// noticed. MeasuredInput is what a call knows of its own input; InputSample is what of it is kept,
// in memory and on disk (FORMAT.md has its bytes).
//
// Floats are summed up in blocks. Of each block the sample keeps a projection: the sum of its
// elements, each times a fixed weight. Two blocks agree when their projections differ by less than
// rounding to bfloat16 can bring about, so features that were stored narrowed, or computed in
// another batch, agree. All other values are one hash, and agree when they are equal.
//
// Knows no tensors: tensor/input_sampler.h reads them. Values only; no function throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cache/block_sums.h"

namespace modcache::cache {

class InputSample {
 public:
  static constexpr std::size_t kMostBytes = 59;

  // Empty: it agrees with every input.
  InputSample() = default;
  // More bytes than any version writes are no sample.
  explicit InputSample(std::string_view bytes);

  std::string_view bytes() const { return {bytes_.data(), size_bytes_}; }
  bool empty() const { return size_bytes_ == 0; }

 private:
  std::array<char, kMostBytes> bytes_{};
  std::uint8_t size_bytes_ = 0;
};

class MeasuredInput {
 public:
  static constexpr std::size_t kMostBlocks = 24;

  // Adds the blocks of one more tensor of floats. `elements`: the number in its longest block.
  // REQUIRES: room for them.
  void add_blocks(const BlockSums& sums, std::size_t elements);
  // All that is no float, together.
  void set_exact(std::uint64_t hash) {
    exact_ = hash;
    has_exact_ = true;
  }

  std::size_t blocks() const { return blocks_; }
  bool empty() const { return blocks_ == 0 && !has_exact_; }

  InputSample sample() const;
  // Whether an entry with this sample may have been computed from this input. A sample that is
  // empty, or of a version that this code does not know, agrees.
  bool agrees_with(std::string_view sample) const;

 private:
  std::size_t size_bytes() const;
  // As a sample keeps it.
  std::uint16_t code_of_block(std::size_t block) const;
  bool all_near(const char* codes) const;
  bool all_agree(const char* codes) const;

  // The first blocks_ of each are set.
  std::array<float, kMostBlocks> projections_;
  std::array<float, kMostBlocks> tolerances_;
  std::array<std::uint16_t, kMostBlocks> special_codes_;  // only where has_specials_; 0 for none
  bool has_specials_ = false;
  std::uint8_t blocks_ = 0;
  bool has_exact_ = false;
  std::uint64_t exact_ = 0;
};

// The input of a call, or of a batch, from which rows can be measured. Used by one thread.
class InputSource {
 public:
  virtual ~InputSource() = default;
  // False: nothing can be told of it, and it agrees with every sample.
  virtual bool measure(std::size_t row, MeasuredInput& measured) const = 0;
  // Whether measuring waits for an accelerator.
  virtual bool is_costly() const = 0;
};

}  // namespace modcache::cache
