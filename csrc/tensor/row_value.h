// SPDX-License-Identifier: Apache-2.0
//
// RowValue: one row of a module's result for a batch, as the tiers hold it. It owns its bytes and
// is never a view of the batch. Immutable once it is shared, so any thread may read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/settings.h"
#include "cache/value.h"
#include "tensor/layout.h"
#include "tensor/row_padding.h"
#include "tensor/tree.h"

namespace modcache::tensor {

class RowValue final : public cache::Value, public std::enable_shared_from_this<RowValue> {
 public:
  explicit RowValue(LayoutPtr layout);

  // Reads a row from a directory. Returns kCorruption as read_payload() does; throws
  // std::bad_alloc. REQUIRES: check_payload_size() is ok.
  static Result<std::shared_ptr<const cache::Value>> read(LayoutPtr layout,
                                                          std::size_t stored_size_bytes,
                                                          const ReadStored& read);

  std::shared_ptr<const RowValue> shared() const { return shared_from_this(); }
  const Layout& layout() const { return *layout_; }
  // Null for a row that lies on a device.
  const std::byte* bytes() const { return bytes_.get(); }
  bool is_on_device() const { return on_device_.defined(); }
  // uint8 [payload size]. REQUIRES: is_on_device().
  const at::Tensor& on_device() const { return on_device_; }

  // Returns whether the bytes are those of batch_of_one(), as they are.
  bool is_plain_lone_tensor() const;
  // Returns a batch of this row alone, which is the caller's. REQUIRES: is_plain_lone_tensor().
  at::Tensor batch_of_one() const;

  // Returns the same row on the device; null when the device cannot take it. REQUIRES:
  // !is_on_device().
  std::shared_ptr<const RowValue> on(const std::string& device) const;
  // REQUIRES: is_on_device().
  std::shared_ptr<const RowValue> on_host() const;

  std::size_t payload_size_bytes() const override { return layout_->payload_size_bytes(); }
  std::size_t size_bytes() const override {
    return layout_->payload_size_bytes() + layout_share_bytes_ + kObjectBytes;
  }
  cache::Written write(codec::Codec codec) const override;
  bool outlives_fork() const override { return !is_on_device(); }

 private:
  friend class RowCutter;
  static constexpr std::size_t kObjectBytes = 104;

  RowValue(const RowValue& host, at::Tensor on_device);

  LayoutPtr layout_;
  std::size_t layout_share_bytes_;
  std::unique_ptr<std::byte[]> bytes_;
  at::Tensor on_device_;
};

// Cuts a module's result for several rows into RowValues.
class RowCutter {
 public:
  // REQUIRES: all tensors can be stored, and have `rows` as their first size.
  RowCutter(const Flat& result, std::optional<at::Device> input_device, cache::StoredDtype dtype,
            const RowMarks& marks = {});
  std::shared_ptr<const RowValue> cut(std::size_t row) const;
  // Returns the row without its padding: its true part in `dims`, a set for each tensor.
  std::shared_ptr<const RowValue> cut(std::size_t row, const std::vector<DimSet>& dims,
                                      std::int64_t length, TruePart part = TruePart::kFirst);

 private:
  std::vector<at::Tensor> copies_;
  std::map<std::int64_t, LayoutPtr> layouts_;  // of the lengths that were cut
  LayoutPtr layout_;
};

// Assembles, on their device, rows that the memory tier holds there. Returns them in this order, as
// a module's result for them would be. The tensors belong to the caller. They are on the device of
// the call's input where the result lay beside its input when it was computed, otherwise on the
// host. Returns nothing when the rows lie on several devices or do not fit together. REQUIRES: at
// least one row; all are RowValue::is_on_device().
std::optional<Flat> together_on_device(const std::vector<std::shared_ptr<const RowValue>>& rows,
                                       std::optional<at::Device> input_device);

}  // namespace modcache::tensor
