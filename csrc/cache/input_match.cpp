// SPDX-License-Identifier: Apache-2.0
#include "cache/input_match.h"

#include <string>

namespace modcache::cache {
namespace {

// "float32[2,3],int64[2]" -> "float32,int64"
std::string dtypes_of(std::string_view signature) {
  std::string out;
  bool inside = false;
  for (const char c : signature) {
    if (c == '[') inside = true;
    if (!inside) out.push_back(c);
    if (c == ']') inside = false;
  }
  return out;
}

}  // namespace

bool InputMatch::fits_signature(std::string_view given, std::string_view stored) const {
  if (given.empty() || stored.empty() || given == stored) return true;
  switch (how_) {
    case Match::kInput:
    case Match::kShape: return false;
    case Match::kDtype: return dtypes_of(given) == dtypes_of(stored);
    case Match::kNone: return true;
  }
  return false;
}

bool InputMatch::fits_sample(const InputSource* input, std::size_t row,
                             std::string_view stored) const {
  if (!compares_samples() || input == nullptr || stored.empty()) return true;
  MeasuredInput measured;
  return !input->measure(row, measured) || measured.agrees_with(stored);
}

}  // namespace modcache::cache
