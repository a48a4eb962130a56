// SPDX-License-Identifier: Apache-2.0
//
// Attributes that are no tensors, written down so that equal values give equal bytes in every
// process. Tensors and objects inside them (a list of buffers, an object in a dict) are listed
// beside the bytes and stand in them as a number.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "base/hash.h"

namespace modcache::module {

struct PlainValue {
  std::string bytes;
  std::vector<at::Tensor> tensors;
  std::vector<c10::intrusive_ptr<c10::ivalue::Object>> objects;
  // Set when something in the value cannot be written down: "a torch.Generator", ...
  std::string why_not_hashable;
};

// Objects of C++ classes (torchbind) are written by their __getstate__, if they have one.
// Devices are left out: a module is the same wherever it lies.
void append_plain_value(const at::IValue& value, PlainValue& out);

// Bytes and tensor contents together, for a constant of the code. `why_not_hashable` is set, and
// the digest worth nothing, when the constant cannot be hashed.
Digest128 constant_digest(const at::IValue& value, std::string& why_not_hashable);

}  // namespace modcache::module
