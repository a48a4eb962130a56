// SPDX-License-Identifier: Apache-2.0
#include "cache/input_match.h"

namespace modcache::cache {
bool InputMatch::fits_signature(std::string_view given, std::string_view stored) const {
  return how_ == Match::kNone || given.empty() || stored.empty() || given == stored;
}

bool InputMatch::fits_sample(const InputSource* input, std::size_t row,
                             std::string_view stored) const {
  if (!compares_samples() || input == nullptr || stored.empty()) return true;
  MeasuredInput measured;
  return !input->measure(row, measured) || measured.agrees_with(stored);
}

}  // namespace modcache::cache
