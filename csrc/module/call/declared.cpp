// SPDX-License-Identifier: Apache-2.0
#include "module/call/declared.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <sstream>
#include <utility>

namespace modcache::module {
namespace {

std::string shape_of_row(const tensor::Flat& row) {
  std::ostringstream text;
  for (const at::Tensor& tensor : row.tensors)
    text << tensor.scalar_type() << tensor.sizes() << ' ';
  return text.str();
}

std::string why_apart(const Operator& asked, const std::vector<tensor::Flat>& rows) {
  std::size_t other = 1;
  while (other + 1 < rows.size() && shape_of_row(rows[other]) == shape_of_row(rows[0])) ++other;
  return "its rows do not fit into one tensor: row 0 is " + shape_of_row(rows[0]) + "and row " +
         std::to_string(other) + " is " + shape_of_row(rows[other]) + "; " + asked.cure +
         ", which returns a list of rows (in Python also ragged=\"list\" or ragged=\"pad\"), or "
         "pad the input to a fixed length";
}

bool may_be_a_tensor(const c10::TypePtr& type) {
  return type == nullptr || type->kind() == c10::TypeKind::TensorType ||
         type->kind() == c10::TypeKind::AnyType;
}

}  // namespace

// A declared None counts as no declaration: TorchScript declares it for a method that always
// raises.
c10::TypePtr declared_type(const c10::ClassType& type, const std::string& method) {
  const auto& returns = type.getMethod(method).getSchema().returns();
  if (returns.size() != 1 || returns[0].type()->kind() == c10::TypeKind::NoneType) return nullptr;
  return returns[0].type();
}

void Declared::check_wanted(bool is_tensor, const std::string& given) const {
  TORCH_CHECK(is_tensor || want == Want::kAny, asked.name, ": ", who, " returned ", given,
              ", but this operator caches one Tensor; ", asked.cure, " for structured results");
}

std::optional<at::IValue> Declared::value_of(const tensor::Node& root,
                                             const std::vector<at::Tensor>& tensors) const {
  auto value = tensor::rebuild(root, tensors, type);
  // This applies to hits alone: a result of the module itself is checked after its run.
  if (value.has_value() && want == Want::kTensor && !value->isTensor()) return std::nullopt;
  return value;
}

std::optional<at::IValue> Declared::value_of(const tensor::WholeValue& hit,
                                             std::optional<at::Device> device) const {
  if (hit.is_lone_tensor() && may_be_a_tensor(type)) return hit.hand_out_tensor(device);
  return value_of(hit.root(), hit.hand_out(device));
}

std::optional<Rows> Declared::rows_of(RowsCall& call) const {
  if (auto flat = call.together()) {
    auto value = value_of(flat->root, flat->tensors);
    if (!value.has_value()) return std::nullopt;
    return Rows{*std::move(value), {}};
  }
  const std::vector<tensor::Flat> apart = call.apart();
  if (want == Want::kTensor) {
    call.refuse_rows_apart(why_apart(asked, apart));
    return std::nullopt;
  }
  std::vector<at::IValue> rows;
  rows.reserve(apart.size());
  for (const tensor::Flat& row : apart) {
    auto value = value_of(row.root, row.tensors);
    if (!value.has_value()) return std::nullopt;
    rows.push_back(*std::move(value));
  }
  return Rows{{}, std::move(rows)};
}

}  // namespace modcache::module
