// SPDX-License-Identifier: Apache-2.0
//
// Attributes that are no tensors, written down so that equal values give equal bytes in every
// process. Tensors and objects inside them (a list of buffers, an object in a dict) are listed
// beside the bytes and stand in them as a number.
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
  // Set when something in the value cannot be written down: "a torch.Generator", ...
  std::string why_not_hashable;
};

// Objects of C++ classes (torchbind) are written by their __getstate__, if they have one.
// Devices are left out: a module is the same wherever it lies.
void append_plain_value(const at::IValue& value, PlainValue& out);

// Writes down the fields of the objects of TorchScript classes that `value` leads to, and of those
// in them, each with what `class_mark` says of its class.
using ClassMark = std::function<std::string(const c10::ClassTypePtr&)>;
void append_objects(PlainValue& value, const ClassMark& class_mark);

// Bytes and tensor contents together, for a constant of the code. `why_not_hashable` is set, and
// the digest worth nothing, when the constant cannot be hashed.
Digest128 constant_digest(const at::IValue& value, std::string& why_not_hashable);

}  // namespace modcache::module
