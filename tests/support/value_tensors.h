// SPDX-License-Identifier: Apache-2.0
//
// Values for tests of the tensor room, and how they are compared: bit for bit, whatever the dtype.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/input.h"
#include "tensor/row_value.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/tree.h"

namespace modcache::testing {

inline at::IValue tuple_of(std::vector<at::IValue> items) {
  return c10::ivalue::Tuple::create(std::move(items));
}

// A lone tensor, or a tuple of several.
inline tensor::Flat flat_of(std::vector<at::Tensor> tensors) {
  tensor::Flat flat;
  if (tensors.size() != 1) {
    flat.root.kind = tensor::Node::Kind::kTuple;
    flat.root.children.resize(tensors.size());
  }
  flat.tensors = std::move(tensors);
  return flat;
}

// (tensor, number)
inline tensor::Flat with_number(const at::Tensor& tensor, std::int64_t number) {
  tensor::Flat flat = flat_of({tensor, tensor});
  flat.tensors.pop_back();
  flat.root.children[1].kind = tensor::Node::Kind::kInt;
  flat.root.children[1].integer = number;
  return flat;
}

inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor::copy_to_store(tensor, cache::StoredDtype::kKeep);
  if (plain.nbytes() == 0) return {};
  return {reinterpret_cast<const char*>(tensor::const_bytes(plain)), plain.nbytes()};
}

inline void expect_same(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(bytes_of(a), bytes_of(b));
}

// Every dtype of this torch that can be stored.
inline std::vector<at::ScalarType> all_dtypes() {
  std::vector<at::ScalarType> dtypes;
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const auto dtype = static_cast<at::ScalarType>(number);
    if (tensor::is_storable_dtype(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// Those of all_dtypes() that have one of these names: older versions of torch lack some.
inline std::vector<at::ScalarType> dtypes_named(const std::vector<std::string_view>& names) {
  std::vector<at::ScalarType> dtypes;
  for (const at::ScalarType dtype : all_dtypes()) {
    const bool is_named =
        std::find(names.begin(), names.end(), tensor::dtype_name(dtype)) != names.end();
    if (is_named) dtypes.push_back(dtype);
  }
  return dtypes;
}

// [rows, 3], with other bits in each row; bools are 0 and 1.
inline at::Tensor matrix_of(at::ScalarType dtype, std::int64_t rows = 4) {
  const auto row_bytes = static_cast<std::int64_t>(3 * c10::elementSize(dtype));
  const at::Tensor bytes = at::arange(rows * row_bytes).to(at::kByte).view({rows, row_bytes});
  return (dtype == at::kBool ? bytes.remainder(2) : bytes).contiguous().view(dtype);
}

inline std::vector<std::shared_ptr<const tensor::RowValue>> cut(
    const tensor::Flat& batch, cache::StoredDtype dtype = cache::StoredDtype::kKeep,
    std::optional<at::Device> input = at::Device(at::kCPU)) {
  const tensor::RowCutter cutter(batch, input, dtype);
  std::vector<std::shared_ptr<const tensor::RowValue>> rows;
  for (std::int64_t i = 0; i < batch.tensors[0].size(0); ++i) {
    rows.push_back(cutter.cut(static_cast<std::size_t>(i)));
  }
  return rows;
}
inline std::vector<std::shared_ptr<const tensor::RowValue>> cut(const at::Tensor& batch) {
  return cut(flat_of({batch}));
}

}  // namespace modcache::testing
