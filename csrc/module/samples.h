// SPDX-License-Identifier: Apache-2.0
//
// Samples: whole values that a caller computes himself, many keys in one question. A dataset's
// cache asks so, once for each batch:
//
//     SamplesFound found = look_up_samples(names, keys);
//     ... computes those that are not found ...
//     keep_samples(names, computed_keys, values, run_us);
//
// They are the entries that cache::lookup and cache::store know by scope and key. Samples found on
// disk are copied from the page cache to the caller and nowhere else: it holds them once for all
// workers of a machine. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tree.h"

namespace modcache::module {

struct SampleNames {
  std::string scope;
  std::string class_name;  // for messages
};

struct SamplesFound {
  bool is_off = false;  // the mode is off: nothing is to be kept, and the samples were counted
  std::vector<std::optional<tensor::Flat>>
      values;  // one for each key, on the CPU, the caller's own
};

// REQUIRES: distinct keys, none empty. Nothing is found under a mode that always runs.
SamplesFound look_up_samples(const SampleNames& names, const std::vector<std::string_view>& keys);

// What the caller computed for each key, and how long that took. Counts misses; stores where the
// mode may write, and compares under `verify`. Throws for a value that cannot be stored.
void keep_samples(const SampleNames& names, const std::vector<std::string_view>& keys,
                  const std::vector<tensor::Flat>& values, const std::vector<std::int64_t>& run_us);

}  // namespace modcache::module
