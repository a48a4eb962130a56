// SPDX-License-Identifier: Apache-2.0
//
// TensorValue: a dense tensor as the tiers hold it. It owns a contiguous copy on the CPU that
// nobody else can reach: what a caller gets is its own, to write into as it likes.
// Immutable, so any thread may share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "cache/value.h"

namespace modcache::tensor {

// Why no tier can hold `tensor` (sparse, quantized, nested, a functorch or fake wrapper, a
// subclass, no data); null when one can. The text completes "a result that is ...".
const char* why_not_storable(const at::Tensor& tensor);

class TensorValue final : public cache::Value {
 public:
  // Copies `result`, whatever its strides, device, grad or inference state.
  // `input_device`: where the call's input lay; a hit follows its own input there if the result
  // lay beside it. REQUIRES: why_not_storable(result) == nullptr.
  static std::shared_ptr<const TensorValue> copy_of(const at::Tensor& result,
                                                    std::optional<at::Device> input_device);

  // A tensor with this value that requires no grad, is no inference tensor (whatever mode the
  // caller is in), and that the caller may change without changing this value.
  at::Tensor hand_out(std::optional<at::Device> input_device) const;

  std::size_t size_bytes() const override { return master_.nbytes() + kObjectBytes; }
  std::string header() const override;
  SharedBytes payload() const override;

 private:
  friend class TensorFormat;
  // The tensor's impl and storage objects.
  static constexpr std::size_t kObjectBytes = 400;

  TensorValue(at::Tensor master, bool beside_input);

  at::Tensor master_;  // contiguous, CPU; never handed out itself
  bool beside_input_;  // the result lay on its input's device
};

// Reads TensorValues back. Header layout: FORMAT.md, "Tensor header".
class TensorFormat final : public cache::ValueFormat {
 public:
  Result<std::shared_ptr<const cache::Value>> read(std::string_view header,
                                                   const store::FoundEntry& found) const override;
};

}  // namespace modcache::tensor
