// SPDX-License-Identifier: Apache-2.0
//
// Makes keys from the content of samples, for callers that have no ids. The hash is cryptographic,
// as the input may come from a stranger who wants two samples to share a key. FORMAT.md, "Content
// keys", defines the bytes that are hashed: they are the same on every machine and never change.
//
// A key covers the structure of tuples, lists and dicts (with the order of a dict), each tensor's
// dtype, shape and elements, and each plain value. It covers neither a tensor's device and strides
// nor whether it requires grad. An outermost tuple of one item counts as that item.
//
// All functions return kInvalidArgument for a tensor without plain bytes (sparse, quantized,
// nested, a subclass, ...) and for a value that is not a plain one, so no key leaves anything out
// silently. Exceptions that torch throws while it copies a tensor (a device out of memory) pass
// through. Any thread may call; none needs the GIL.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace modcache::tensor {

// Returns 64 hexadecimal digits.
Result<std::string> content_key(const at::IValue& input);

// Returns one key per row: the first dimension of every tensor is the number of rows, and values
// other than tensors belong to every row. Key i is content_key() of the input with each tensor
// replaced by its row i. kInvalidArgument also for an input without a tensor, for a tensor without
// dimensions, and for tensors with different numbers of rows.
Result<std::vector<std::string>> content_keys(const at::IValue& input);

// An input taken apart by Python, whose lists and dicts may hold values that TorchScript has no
// type for. `structure` lists the parts from the outside inwards: "(2;" is a tuple, "[2;" a list,
// "{2;" a dict of two items (key, value, key, value), and "." stands for the next of `leaves`.
struct TakenApart {
  std::string_view structure;
  c10::ArrayRef<at::IValue> leaves;
};

Result<std::string> content_key(const TakenApart& input);
Result<std::vector<std::string>> content_keys(const TakenApart& input);

}  // namespace modcache::tensor
