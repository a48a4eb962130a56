// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <sstream>
#include <utility>

#include "tensor/storable.h"

namespace modcache::tensor {
namespace {

at::IValue select_in(const at::IValue& value, const std::vector<std::int64_t>& rows) {
  if (value.isTensor()) return select_rows(value.toTensor(), rows);
  if (value.isTuple()) {
    std::vector<at::IValue> items;
    for (const at::IValue& item : value.toTupleRef().elements()) {
      items.push_back(select_in(item, rows));
    }
    const auto type = value.toTupleRef().type<c10::TupleType>();
    return type->schema() != nullptr ? c10::ivalue::Tuple::createNamed(std::move(items), type)
                                     : c10::ivalue::Tuple::create(std::move(items));
  }
  if (value.isList()) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const at::IValue& item : value.toListRef()) list.push_back(select_in(item, rows));
    return list;
  }
  if (value.isGenericDict()) {
    const auto items = value.toGenericDict();
    c10::impl::GenericDict dict(items.keyType(), items.valueType());
    for (const auto& item : items) dict.insert(item.key(), select_in(item.value(), rows));
    return dict;
  }
  return value;
}

}  // namespace

at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong).to(tensor.device());
  const at::Tensor selected = at::index_select(as_operable(tensor), 0, index);
  return selected.scalar_type() == tensor.scalar_type() ? selected
                                                        : selected.view(tensor.scalar_type());
}

at::IValue select_rows(const at::IValue& input, const std::vector<std::int64_t>& rows) {
  return select_in(input, rows);
}

std::string why_no_rows(const Flat& result, std::int64_t rows) {
  if (result.tensors.empty()) return "no tensor";
  for (const at::Tensor& tensor : result.tensors) {
    if (tensor.dim() > 0 && tensor.size(0) == rows) continue;
    std::ostringstream text;
    text << "a tensor of shape " << tensor.sizes();
    return text.str();
  }
  return {};
}

}  // namespace modcache::tensor
