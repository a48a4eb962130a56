// SPDX-License-Identifier: Apache-2.0
//
// RowValue: one row of what a module returned for a batch, as the tiers hold it: its own bytes,
// never a view of the batch. Immutable once it is shared, so any thread may read it.
#pragma once

#include <cstddef>
#include <memory>

#include "cache/settings.h"
#include "cache/value.h"
#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

class RowValue final : public cache::Value, public std::enable_shared_from_this<RowValue> {
 public:
  // `sharers`: how many rows have this layout in common.
  RowValue(LayoutPtr layout, std::size_t sharers);

  const Layout& layout() const { return *layout_; }
  const std::byte* bytes() const { return bytes_.get(); }

  std::size_t size_bytes() const override {
    return layout_->payload_size_bytes() + layout_->size_bytes() / sharers_ + kObjectBytes;
  }
  cache::Written write(codec::Codec codec) const override;

 private:
  friend class RowCutter;
  static constexpr std::size_t kObjectBytes = 96;

  LayoutPtr layout_;
  std::size_t sharers_;
  std::unique_ptr<std::byte[]> bytes_;
};

// Cuts a module's result for several rows into RowValues.
class RowCutter {
 public:
  // REQUIRES: all tensors can be stored, and have `rows` as their first size.
  RowCutter(const Flat& result, std::optional<at::Device> input_device, cache::StoredDtype dtype);
  std::shared_ptr<const RowValue> cut(std::size_t row) const;

 private:
  std::vector<at::Tensor> copies_;
  LayoutPtr layout_;
  std::size_t rows_ = 1;
};

}  // namespace modcache::tensor
