// SPDX-License-Identifier: Apache-2.0
//
// Takes a structured value apart into a tree (value_header.h) and tensors, and rebuilds it.
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

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/value_header.h"

namespace modcache::tensor {

struct Flat {
  Node root;
  std::vector<at::Tensor> tensors;  // in the order of a walk through the tree
  // Set when something in the value cannot be stored: "a value of type Device", ...
  std::string why_not_storable;

  bool requires_grad() const;
};

// Returns why no tier can hold it; empty when one can. The text completes "a result that is ...".
std::string why_not_storable(const Flat& value);

// Returns `value` with `replace(tensor)` in place of each tensor in it, in new containers of the
// same types. Objects stay as they are.
at::IValue with_tensors(const at::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& replace);

// Takes apart the result of a TorchScript module.
Flat flatten(const at::IValue& value);
// Takes apart a value that Python handed over. Throws when it is not made of tagged tuples.
Flat flatten_tagged(const at::IValue& value);

// Rebuilds the value as the declared `type` says; where that is null or Any, as the tree says.
// Returns nothing when the tree is not a value of that type, or TorchScript has no such type.
std::optional<at::IValue> rebuild(const Node& root, const std::vector<at::Tensor>& tensors,
                                  const c10::TypePtr& type);
at::IValue rebuild_tagged(const Node& root, const std::vector<at::Tensor>& tensors);

// Parses the annotation_str() of a type, such as "Dict[str, List[Tensor]]". Returns null for any
// other text, and for the name of a class, which only a declared type knows.
c10::TypePtr parse_type(std::string_view text);

}  // namespace modcache::tensor
