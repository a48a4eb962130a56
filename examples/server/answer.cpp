// SPDX-License-Identifier: Apache-2.0
#include "answer.h"

#include <ATen/ATen.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace server {
namespace {

template <typename Number>
void append_number(std::string& text, Number number) {
  if constexpr (std::is_same_v<Number, bool>) {
    text += number ? "true" : "false";
    return;
  } else {
    if constexpr (std::is_floating_point_v<Number>) {
      if (!std::isfinite(number)) {
        text += "null";
        return;
      }
    }
    char digits[40];
    const auto written = std::to_chars(std::begin(digits), std::end(digits), number);
    text.append(std::begin(digits), written.ptr);
  }
}

template <typename Number>
const Number* append_lists(std::string& text, at::IntArrayRef sizes, const Number* next) {
  if (sizes.empty()) {
    append_number(text, *next);
    return next + 1;
  }
  text += '[';
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    if (i > 0) text += ',';
    next = append_lists(text, sizes.slice(1), next);
  }
  text += ']';
  return next;
}

template <typename Number>
void append_as(std::string& text, const at::Tensor& tensor) {
  const at::Tensor plain =
      tensor.to(at::kCPU, c10::CppTypeToScalarType<Number>::value).contiguous();
  append_lists(text, plain.sizes(), plain.const_data_ptr<Number>());
}

void append_tensor(std::string& text, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) {
    append_as<bool>(text, tensor);
  } else if (tensor.scalar_type() == at::kDouble) {
    append_as<double>(text, tensor);
  } else if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    append_as<std::int64_t>(text, tensor);
  } else if (at::isFloatingType(tensor.scalar_type())) {
    append_as<float>(text, tensor);
  } else {
    throw std::runtime_error("the model returned a tensor of " +
                             std::string(c10::toString(tensor.scalar_type())) +
                             ", which JSON has no word for");
  }
}

template <typename Items>
void append_items(std::string& text, const Items& items) {
  text += '[';
  bool is_first = true;
  for (const c10::IValue& item : items) {
    if (!is_first) text += ',';
    is_first = false;
    append_json(text, item);
  }
  text += ']';
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_dict(std::string& text, const c10::Dict<c10::IValue, c10::IValue>& dict) {
  text += '{';
  bool is_first = true;
  for (const auto& entry : dict) {
    if (!is_first) text += ',';
    is_first = false;
    std::string key;
    if (!entry.key().isString()) append_json(key, entry.key());
    text += quoted(entry.key().isString() ? entry.key().toStringRef() : key) + ':';
    append_json(text, entry.value());
  }
  text += '}';
}

}  // namespace

void append_json(std::string& text, const c10::IValue& value) {
  if (value.isTensor()) {
    append_tensor(text, value.toTensor());
  } else if (value.isTuple()) {
    append_items(text, value.toTupleRef().elements());
  } else if (value.isList()) {
    append_items(text, value.toListRef());
  } else if (value.isGenericDict()) {
    append_dict(text, value.toGenericDict());
  } else if (value.isString()) {
    text += quoted(value.toStringRef());
  } else if (value.isDouble()) {
    append_number(text, value.toDouble());
  } else if (value.isInt()) {
    append_number(text, value.toInt());
  } else if (value.isBool()) {
    append_number(text, value.toBool());
  } else if (value.isNone()) {
    text += "null";
  } else {
    throw std::runtime_error("the model returned a " + value.tagKind() +
                             ", which JSON has no word for");
  }
}

}  // namespace server
