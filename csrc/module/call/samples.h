// SPDX-License-Identifier: Apache-2.0
//
// Samples: whole values that a caller computes itself, many keys in one question. A dataset's cache
// asks once for each batch:
//
//     SamplesFound found = look_up_samples(names, keys);
//     ... computes those that are not found ...
//     store_samples(names, found.begun, computed_keys, values, run_us);
//
// cache::lookup and cache::store know the same entries by scope and key. Samples on disk are copied
// from the page cache to the caller and nowhere else, as the page cache holds them once for all
// workers of a machine. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "tensor/tree.h"

namespace modcache::module {

// Returns the keys of whole values that are known by scope and key alone. Borrows `keys`.
cache::Keys sample_keys(const cache::ConfigurationPtr& configuration, std::string_view scope,
                        std::span<const std::string_view> keys);

struct SampleNames {
  std::string scope;
  std::string class_name;  // for messages
};

struct SamplesFound {
  bool is_off = false;  // the mode is off: store nothing; the samples were counted
  std::vector<std::optional<tensor::Flat>> values;  // one per key, on the CPU, the caller's own
  cache::Generation begun;                          // for what is stored then
};

// Finds nothing under a mode that always runs, and treats errors of the cache as misses. REQUIRES:
// distinct keys, none empty.
SamplesFound look_up_samples(const SampleNames& names, const std::vector<std::string_view>& keys);

// Takes the value that the caller computed for each key since `begun`, and how long that took.
// Counts misses; stores where the mode may write and the scope was not cleared since, and compares
// under `verify`. Throws for a value that cannot be stored.
void store_samples(const SampleNames& names, const cache::Generation& begun,
                   const std::vector<std::string_view>& keys,
                   const std::vector<tensor::Flat>& values,
                   const std::vector<std::int64_t>& run_us);

}  // namespace modcache::module
