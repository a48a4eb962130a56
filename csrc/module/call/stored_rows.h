// SPDX-License-Identifier: Apache-2.0
//
// Rows that a lookup found, on their way to the output of their batch.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "cache/cache.h"
#include "module/call/call_parts.h"
#include "tensor/layout.h"
#include "tensor/rows.h"

namespace modcache::module {

// The layouts of values on disk. Each header is decoded at the first value that has it. `rows` must
// outlive it.
class StoredLayouts {
 public:
  explicit StoredLayouts(const cache::FoundRows& rows)
      : rows_(rows), decoded_(rows.headers().size()) {}

  // Returns the layout of the value, whose payload has the size that the layout says; otherwise
  // kCorruption. REQUIRES: rows.has(index).
  Result<const tensor::Layout*> of(std::size_t index);

 private:
  const cache::FoundRows& rows_;
  std::vector<tensor::LayoutPtr> decoded_;  // by header
};

// The keys of a batch, and what was found for them.
struct FoundBatch {
  const cache::Keys& keys;
  cache::Found& found;
  bool may_write;
  std::size_t rows;  // of the call, which may look up fewer
};

// Adds all rows that were found to `output`, each in the place of its row of the input. Rows on
// disk and in the host's memory are copied there; rows that the memory tier holds on a device are
// put together on it where they fit together. Rows that cannot be used are refused or left missing.
void add_stored_rows(const CallParts& parts, const FoundBatch& batch, tensor::RowsOutput& output);

}  // namespace modcache::module
