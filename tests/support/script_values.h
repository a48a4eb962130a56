// SPDX-License-Identifier: Apache-2.0
//
// Structured values of TorchScript, and how they come back from the bytes that are stored.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tree.h"

namespace modcache::testing {

using at::IValue;
using c10::TypePtr;
using tensor::Flat;

inline TypePtr type_of(const std::string& text) {
  return torch::jit::ScriptTypeParser().parseType(text);
}

inline IValue list_of(const std::string& element, const std::vector<IValue>& items) {
  c10::impl::GenericList list(type_of(element));
  for (const IValue& item : items) list.push_back(item);
  return list;
}
inline IValue dict_of(const std::string& key, const std::string& value,
                      const std::vector<std::pair<IValue, IValue>>& items) {
  c10::impl::GenericDict dict(type_of(key), type_of(value));
  for (const auto& [k, v] : items) dict.insert(k, v);
  return dict;
}
inline TypePtr point_type(const std::string& name = "__torch__.Point",
                          const std::vector<std::string>& fields = {"x", "label"},
                          const std::string& element = "int") {
  return c10::TupleType::createNamed(c10::QualifiedName(name), fields,
                                     {c10::TensorType::get(), type_of("List[" + element + "]")});
}
inline IValue point(const TypePtr& type = point_type(), const std::string& element = "int") {
  return c10::ivalue::Tuple::createNamed({at::ones({2}), list_of(element, {})},
                                         type->cast<c10::TupleType>());
}

// As prim::isinstance sees it; the shapes of tensors are no part of it.
inline std::string type_text(const IValue& value) {
  return c10::unshapedType(value.type())->annotation_str();
}

// What is the same for equal values.
inline std::string text_of(const Flat& flat) {
  tensor::ValueHeader header;
  header.root = flat.root;
  header.tensors.resize(flat.tensors.size());
  return tensor::encode_value_header(header);
}

// Through the bytes that are stored.
inline std::optional<IValue> rebuilt(const Flat& flat, const TypePtr& type) {
  const auto decoded = tensor::decode_value_header(text_of(flat));
  EXPECT_TRUE(decoded.is_ok()) << decoded.status().message();
  return tensor::rebuild(decoded.value().root, flat.tensors, type);
}

inline void expect_rebuilt(const IValue& original, const TypePtr& type) {
  const Flat flat = tensor::flatten(original);
  ASSERT_EQ(flat.why_not_storable, "");
  const auto again = rebuilt(flat, type);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(type_text(*again), type_text(original));
  const Flat flat_again = tensor::flatten(*again);
  EXPECT_EQ(text_of(flat_again), text_of(flat));
  ASSERT_EQ(flat_again.tensors.size(), flat.tensors.size());
  for (std::size_t i = 0; i < flat.tensors.size(); ++i) {
    EXPECT_TRUE(flat_again.tensors[i].is_same(flat.tensors[i]));
  }
}

}  // namespace modcache::testing
