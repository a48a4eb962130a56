// SPDX-License-Identifier: Apache-2.0
//
// InputMatch: whether an entry may answer a call with this input. The only place where the two are
// compared, for single keys and for batches. The setting `match` says how.
#pragma once

#include <cstddef>
#include <string_view>

#include "cache/input_sample.h"
#include "cache/settings.h"

namespace modcache::cache {

class InputMatch {
 public:
  explicit InputMatch(Match how) : how_(how) {}

  bool compares_samples() const { return how_ == Match::kInput; }

  // Compares dtypes and shapes. An empty signature, of either, matches any.
  bool fits_signature(std::string_view given, std::string_view stored) const {
    return how_ == Match::kNone || given.empty() || stored.empty() || given == stored;
  }
  // Compares the values of row `row`. An empty `stored`, and a null input, match any. REQUIRES: the
  // signatures fit.
  bool fits_sample(const InputSource* input, std::size_t row, std::string_view stored) const {
    return !compares_samples() || input == nullptr || stored.empty() ||
           input->measure(row).matches(stored);
  }

 private:
  const Match how_;
};

}  // namespace modcache::cache
