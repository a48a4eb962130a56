// SPDX-License-Identifier: Apache-2.0
//
// StoredFormat: reads WholeValues and RowValues back from a directory, and moves them from one
// place to another. Header: FORMAT.md, "Value header".
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/value.h"

namespace modcache::tensor {

class StoredFormat final : public cache::ValueFormat {
 public:
  // Whole, whatever its form.
  Result<std::shared_ptr<const cache::Value>> read(std::string_view header,
                                                   const store::FoundEntry& found) const override;
  std::vector<Result<std::shared_ptr<const cache::Value>>> read_all(
      cache::Form form, const cache::FoundRows& found,
      const std::vector<std::size_t>& rows) const override;
  // Rows of the place "pinned" stay as they are: the batch that they are put into is pinned.
  std::shared_ptr<const cache::Value> moved(std::shared_ptr<const cache::Value> value,
                                            const cache::Place& place) const override;
};

}  // namespace modcache::tensor
