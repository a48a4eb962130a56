// SPDX-License-Identifier: Apache-2.0
//
// Whole values of tensors, and how they come back from what is stored of them.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/layout.h"
#include "tensor/whole_value.h"

namespace modcache::testing {

inline std::shared_ptr<const tensor::WholeValue> value_of(
    std::vector<at::Tensor> tensors, cache::StoredDtype dtype = cache::StoredDtype::kKeep) {
  return tensor::WholeValue::copy_of(flat_of(std::move(tensors)), at::Device(at::kCPU), dtype);
}
inline std::shared_ptr<const tensor::WholeValue> value_of(const at::Tensor& tensor) {
  return value_of(std::vector<at::Tensor>{tensor});
}

// Reads a value whose stored bytes are `payload`, or fails with `status` as a directory would.
inline Result<std::shared_ptr<const cache::Value>> read_stored(
    std::string_view header, std::string_view payload, const Status& status = Status::ok()) {
  auto layout = tensor::Layout::decode(header);
  if (!layout.is_ok()) return layout.status();
  MODCACHE_RETURN_IF_ERROR(tensor::check_payload_size(*layout.value(), payload.size()));
  return tensor::WholeValue::read(std::move(layout).value(), payload.size(), [&](void* target) {
    std::memcpy(target, payload.data(), payload.size());
    return status;
  });
}

inline std::shared_ptr<const tensor::WholeValue> written_and_read(
    const cache::Value& value, codec::Codec codec = codec::Codec::kNone) {
  const cache::Written written = value.write(codec);
  auto read = read_stored(written.header, written.payload.view());
  EXPECT_TRUE(read.is_ok()) << read.status().message();
  return std::static_pointer_cast<const tensor::WholeValue>(std::move(read).value());
}

}  // namespace modcache::testing
