// SPDX-License-Identifier: Apache-2.0
//
// InputMatch: whether an entry may answer a call with this input. The one place where the two are
// compared, for single keys and for batches. Setting `match` says how much is compared.
#pragma once

#include <cstddef>
#include <string_view>

#include "cache/input_sample.h"
#include "cache/settings.h"

namespace modcache::cache {

class InputMatch {
 public:
  explicit InputMatch(Match how) : how_(how) {}

  // Dtypes and shapes. An empty signature, of either, matches any.
  bool fits_signature(std::string_view given, std::string_view stored) const;

  // The values of row `row`. REQUIRES: the signatures fit. An empty `stored`, and an input of which
  // nothing can be told (null, too), match any.
  bool fits_sample(const InputSource* input, std::size_t row, std::string_view stored) const;

  bool compares_samples() const { return how_ == Match::kInput; }

 private:
  const Match how_;
};

}  // namespace modcache::cache
