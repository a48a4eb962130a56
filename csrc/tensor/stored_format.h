// SPDX-License-Identifier: Apache-2.0
//
// StoredFormat: reads WholeValues and RowValues from a directory, and moves them between places.
// FORMAT.md, "Value header", defines the header.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/value.h"
#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

class StoredFormat final : public cache::ValueFormat {
 public:
  std::vector<Result<std::shared_ptr<const cache::Value>>> read_all(
      cache::Form form, const cache::FoundRows& found,
      const std::vector<std::size_t>& rows) const override;
  Result<std::shared_ptr<const cache::Value>> read_once(const cache::FoundRows& found,
                                                        std::size_t row) const override;
  // Rows of the place "pinned" stay as they are, as it is the batch assembled from them that is
  // pinned.
  std::shared_ptr<const cache::Value> moved(std::shared_ptr<const cache::Value> value,
                                            const cache::Place& place) const override;
};

// The value that a tier holds as tensors of the caller's own, for callers that need not know
// whether it is a whole value or a row.
struct StoredValue {
  LayoutPtr layout;
  Flat value;  // on the CPU
};

// REQUIRES: `value` is a WholeValue or a RowValue.
StoredValue stored_value(const cache::Value& value);

}  // namespace modcache::tensor
