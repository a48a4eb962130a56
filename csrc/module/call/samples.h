// SPDX-License-Identifier: Apache-2.0
//
// Samples: whole values that a caller computes itself, many keys in one question. A dataset's cache
// asks once for each batch:
//
//     SamplesFound found = look_up_samples(names, keys);
//     ... computes those that are not found ...
//     keep_samples(names, computed_keys, values, run_us);
//
// cache::lookup and cache::store know the same entries by scope and key. Samples on disk are copied
// from the page cache to the caller and nowhere else, as the page cache holds them once for all
// workers of a machine. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/session.h"
#include "tensor/tree.h"

namespace modcache::module {

// Returns the context of whole values that are known by scope and key alone.
cache::ContextPtr sample_context(const cache::Session& session, std::string_view scope);

struct SampleNames {
  std::string scope;
  std::string class_name;  // for messages
};

struct SamplesFound {
  bool is_off = false;  // the mode is off: store nothing; the samples were counted
  std::vector<std::optional<tensor::Flat>> values;  // one per key, on the CPU, the caller's own
};

// Finds nothing under a mode that always runs, and treats errors of the cache as misses. REQUIRES:
// distinct keys, none empty.
SamplesFound look_up_samples(const SampleNames& names, const std::vector<std::string_view>& keys);

// Takes the value that the caller computed for each key, and how long that took. Counts misses;
// stores where the mode may write, and compares under `verify`. Throws for a value that cannot be
// stored.
void keep_samples(const SampleNames& names, const std::vector<std::string_view>& keys,
                  const std::vector<tensor::Flat>& values, const std::vector<std::int64_t>& run_us);

}  // namespace modcache::module
