// SPDX-License-Identifier: Apache-2.0
//
// Serializes attributes other than tensors, so that equal values give equal bytes in every process.
// Tensors and objects inside them (a list of buffers, an object in a dict) are listed beside the
// bytes, which hold their numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"

namespace modcache::module {

struct PlainValue {
  std::string bytes;
  std::vector<at::Tensor> tensors;
  std::vector<c10::intrusive_ptr<c10::ivalue::Object>> objects;  // each once
  std::unordered_map<const c10::ivalue::Object*, std::size_t> number_of_object;
  // Set when something in the value cannot be serialized: "a torch.Generator", ...
  std::string why_not_hashable;
};

// Appends `value`. Objects of C++ classes (torchbind) are represented by their __getstate__, if
// they have one. Devices are left out, as a module is the same on every device.
void append_plain_value(const at::IValue& value, PlainValue& out);

// Appends the fields of the objects of TorchScript classes that `value` leads to, and of those that
// their fields lead to. `class_mark` represents the class of each.
using ClassMark = std::function<std::string(const c10::ClassTypePtr&)>;
void append_objects(PlainValue& value, const ClassMark& class_mark);

// Returns a digest over bytes and tensor contents, for a constant of the code. When the constant
// cannot be hashed, sets `why_not_hashable`, and the digest means nothing.
Digest128 constant_digest(const at::IValue& value, std::string& why_not_hashable);

}  // namespace modcache::module
