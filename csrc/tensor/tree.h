// SPDX-License-Identifier: Apache-2.0
//
// A structured value apart: its tree (value_header.h) and its tensors, and together again.
//
// Python hands structured values over as tagged tuples, since torch's matcher takes neither lists
// of mixed types nor Python's own classes. Tensors and plain values stand for themselves, and
// containers are
//     ("(", items) ("[", items) ("{", keys, values) ("N", class, fields, items)
//     ("o", class, context, items) ("?", why it cannot be stored)
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <string>
#include <vector>

#include "tensor/value_header.h"

namespace modcache::tensor {

struct Flat {
  Node root;
  std::vector<at::Tensor> tensors;  // in the order of the tree's walk
  // Set when something in the value cannot be stored: "a value of type Device", ...
  std::string why_not_storable;

  bool is_lone_tensor() const { return root.kind == Node::Kind::kTensor; }
  bool requires_grad() const;
};

// Why no tier can hold it; empty when one can. The text completes "a result that is ...".
std::string why_not_storable(const Flat& value);

// What a TorchScript module returned.
Flat flatten(const at::IValue& value);
// What Python handed over. Throws for what is no tagged tuple.
Flat flatten_tagged(const at::IValue& value);

// The value as `type`, the declared one, says; where that is null or Any, as the tree says.
// Nothing when the tree is no value of that type, or there is no such type in TorchScript.
std::optional<at::IValue> rebuild(const Node& root, const std::vector<at::Tensor>& tensors,
                                  const c10::TypePtr& type);
at::IValue rebuild_tagged(const Node& root, const std::vector<at::Tensor>& tensors);

}  // namespace modcache::tensor
