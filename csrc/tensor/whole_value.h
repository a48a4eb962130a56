// SPDX-License-Identifier: Apache-2.0
//
// WholeValue: a module's result for one key, as the tiers hold it. It owns contiguous copies that
// nobody else can reach; a caller gets tensors of its own, which it may write into. Immutable, so
// any thread may share it. The copies are on the host, or where moved() put them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/settings.h"
#include "cache/value.h"
#include "tensor/layout.h"
#include "tensor/tree.h"

namespace modcache::tensor {

class WholeValue final : public cache::Value {
 public:
  // Copies the tensors, whatever their device, grad or inference state. `input_device` is
  // the device of the call's input: if the result lay beside it, a hit returns tensors on the
  // device of its own input. REQUIRES: all can be stored (storable.h).
  static std::shared_ptr<const WholeValue> copy_of(const Flat& value,
                                                   std::optional<at::Device> input_device,
                                                   cache::StoredDtype dtype);

  // Reads a value from a directory. Returns kCorruption as read_payload() does, and kIoError when
  // torch refuses the sizes. REQUIRES: check_payload_size() is ok.
  static Result<std::shared_ptr<const cache::Value>> read(LayoutPtr layout,
                                                          std::size_t stored_size_bytes,
                                                          const ReadStored& read);

  // Does the same for a value that is handed out once. A lone tensor is not copied again for that,
  // and a large one stays in the file: `map` is FoundRows::map_copy().
  using MapStored = std::function<Result<std::shared_ptr<std::byte>>()>;
  static Result<std::shared_ptr<const cache::Value>> read_once(LayoutPtr layout,
                                                               std::size_t stored_size_bytes,
                                                               const ReadStored& read,
                                                               const MapStored& map);

  // Returns the same value in another place; null when it cannot be moved there.
  std::shared_ptr<const WholeValue> moved(const cache::Place& place) const;
  const cache::Place& place() const { return place_; }

  const LayoutPtr& layout() const { return layout_; }
  const Node& root() const { return layout_->root(); }
  bool is_lone_tensor() const { return layout_->is_lone_tensor(); }

  // Returns tensors with this value that require no grad and are not inference tensors, whatever
  // mode the caller is in. The caller may change them without changing this value.
  std::vector<at::Tensor> hand_out(std::optional<at::Device> input_device) const;
  // Does the same for a lone tensor. REQUIRES: is_lone_tensor().
  at::Tensor hand_out_tensor(std::optional<at::Device> input_device) const {
    return hand_out(0, input_device);
  }

  std::size_t size_bytes() const override;
  std::size_t payload_size_bytes() const override { return layout_->payload_size_bytes(); }
  cache::Written write(codec::Codec codec) const override;
  bool outlives_fork() const override { return place_.is_host(); }

 private:
  // An estimate for a tensor's impl and storage objects.
  static constexpr std::size_t kTensorBytes = 440;

  enum class Lifetime { kKept, kHandedOutOnce };

  WholeValue(LayoutPtr layout, std::vector<at::Tensor> masters, cache::Place place = {},
             Lifetime lifetime = Lifetime::kKept);
  at::Tensor hand_out(std::size_t i, std::optional<at::Device> input_device) const;
  // Return tensors in the order of the dimensions in memory. REQUIRES: OrdinaryTensors.
  at::Tensor copy_of_master(std::size_t i, std::optional<at::Device> input_device) const;
  at::Tensor copy_of_placed_master(std::size_t i, std::optional<at::Device> input_device) const;
  std::vector<at::Tensor> masters_on_host() const;
  static Result<at::Tensor> read_tensor_once(const Layout& layout, std::size_t stored_size_bytes,
                                             const ReadStored& read, const MapStored& map);

  LayoutPtr layout_;
  const std::size_t layout_share_bytes_;
  // Contiguous, in the stored dtype and the order of the dimensions in memory. Their memory is
  // handed out by a value that is handed out once, at the first time.
  std::vector<at::Tensor> masters_;
  // The bytes of a small lone tensor in its own dtype, so that a hit need not read the tensor's
  // objects, which lie elsewhere; else null.
  const std::byte* small_bytes_ = nullptr;
  const Lifetime lifetime_;
  mutable std::atomic<bool> has_given_memory_{false};
  cache::Place place_;
};

}  // namespace modcache::tensor
