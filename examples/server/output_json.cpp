// SPDX-License-Identifier: Apache-2.0
#include "output_json.h"

#include <ATen/core/Tensor.h>

#include "errors.h"

namespace server {
namespace {

using Json = nlohmann::json;

// `next` is the next number of a contiguous tensor.
template <typename Number>
Json nested_lists(at::IntArrayRef shape, const Number*& next) {
  if (shape.empty()) return *next++;
  Json list = Json::array();
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    list.push_back(nested_lists(shape.slice(1), next));
  }
  return list;
}

template <typename Number>
Json tensor_as(const at::Tensor& tensor) {
  const at::Tensor numbers =
      tensor.to(at::kCPU, c10::CppTypeToScalarType<Number>::value).contiguous();
  const Number* next = numbers.const_data_ptr<Number>();
  return nested_lists(numbers.sizes(), next);
}

Json tensor_json(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == at::kBool) return tensor_as<bool>(tensor);
  if (at::isFloatingType(dtype)) return tensor_as<double>(tensor);
  if (at::isIntegralType(dtype, /*includeBool=*/false)) return tensor_as<std::int64_t>(tensor);
  throw HttpError(500, std::string("the model returned a tensor of ") + c10::toString(dtype) +
                           ", which JSON cannot express");
}

template <typename Items>
Json list_json(const Items& items) {
  Json list = Json::array();
  for (const c10::IValue& item : items) list.push_back(output_json(item));
  return list;
}

Json dict_json(const c10::Dict<c10::IValue, c10::IValue>& dict) {
  Json object = Json::object();
  for (const auto& entry : dict) {
    const Json key = output_json(entry.key());
    object[key.is_string() ? key.get<std::string>() : key.dump()] = output_json(entry.value());
  }
  return object;
}

}  // namespace

Json output_json(const c10::IValue& value) {
  if (value.isTensor()) return tensor_json(value.toTensor());
  if (value.isTuple()) return list_json(value.toTupleRef().elements());
  if (value.isList()) return list_json(value.toListRef());
  if (value.isGenericDict()) return dict_json(value.toGenericDict());
  if (value.isString()) return value.toStringRef();
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  if (value.isNone()) return nullptr;
  throw HttpError(500, "the model returned a " + value.tagKind() + ", which JSON cannot express");
}

}  // namespace server
