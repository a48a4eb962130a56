// SPDX-License-Identifier: Apache-2.0
#include "module/call/declared.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <c10/util/Exception.h>

#include <algorithm>
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

std::string why_rows_are_apart(const Operator& asked, const std::vector<tensor::Flat>& rows) {
  std::size_t other = 1;
  while (other + 1 < rows.size() && shape_of_row(rows[other]) == shape_of_row(rows[0])) ++other;
  return "its rows do not fit into one tensor: row 0 is " + shape_of_row(rows[0]) + "and row " +
         std::to_string(other) + " is " + shape_of_row(rows[other]) + "; " + asked.cure +
         ", which returns a list of rows (in Python also ragged=\"list\" or ragged=\"pad\"), or "
         "pad the input to a fixed length";
}

// A list whose elements are what one row is.
at::IValue list_of(std::vector<at::IValue> rows) {
  const bool are_tensors =
      std::all_of(rows.begin(), rows.end(), [](const at::IValue& row) { return row.isTensor(); });
  c10::impl::GenericList list(are_tensors ? c10::TypePtr(c10::TensorType::get())
                                          : c10::TypePtr(c10::AnyType::get()));
  for (at::IValue& row : rows) list.push_back(std::move(row));
  return list;
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

std::optional<at::IValue> Declared::value_of(CallValue value, std::string& why_apart) const {
  if (auto* const lone = std::get_if<at::Tensor>(&value)) {
    if (may_be_a_tensor(type)) return std::move(*lone);
    return rebuilt({tensor::Node{}, {std::move(*lone)}, {}});
  }
  if (const auto* const flat = std::get_if<tensor::Flat>(&value)) return rebuilt(*flat);
  const auto& apart = std::get<std::vector<tensor::Flat>>(value);
  if (want == Want::kTensor) {
    why_apart = why_rows_are_apart(asked, apart);
    return std::nullopt;
  }
  std::vector<at::IValue> rows;
  for (const tensor::Flat& row : apart) {
    auto rebuilt_row = rebuilt(row);
    if (!rebuilt_row.has_value()) return std::nullopt;
    rows.push_back(*std::move(rebuilt_row));
  }
  return list_of(std::move(rows));
}

// Applies to hits alone: a result of the module itself is checked after its run.
std::optional<at::IValue> Declared::rebuilt(const tensor::Flat& flat) const {
  auto value = tensor::rebuild(flat.root, flat.tensors, type);
  if (value.has_value() && want == Want::kTensor && !value->isTensor()) return std::nullopt;
  return value;
}

}  // namespace modcache::module
