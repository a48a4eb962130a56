// SPDX-License-Identifier: Apache-2.0
//
// Slices: how many values to ask a server for at once whose sizes are not known. It goes by the
// values that came last, so that an answer has about kSliceBytes: neither does memory hold a
// thousand large values, nor does each small one take a round trip. Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bytes.h"

namespace modcache::remote {

class Slices {
 public:
  static constexpr std::size_t kSliceBytes = std::size_t{16} << 20;
  static constexpr std::size_t kFirst = 16;
  // After small values, a slice is at most so many times as long as the one before.
  static constexpr std::size_t kGrowth = 4;

  explicit Slices(std::size_t most) : most_(most), next_(std::min(most, kFirst)) {}

  std::size_t next() const { return next_; }

  void note(const std::vector<SharedBytes>& values) {
    if (values.empty()) return;
    std::size_t size_bytes = 0;
    for (const SharedBytes& value : values) size_bytes += value.size_bytes;
    const std::size_t of_one = std::max<std::size_t>(size_bytes / values.size(), 1);
    next_ = std::clamp<std::size_t>(kSliceBytes / of_one, 1, std::min(most_, next_ * kGrowth));
  }

 private:
  const std::size_t most_;
  std::size_t next_;
};

}  // namespace modcache::remote
