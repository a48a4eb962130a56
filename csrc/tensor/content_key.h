// SPDX-License-Identifier: Apache-2.0
//
// Keys made from what a sample is, for callers that have no id for it. A cryptographic hash, as
// the input may come from a stranger who would like two samples to share a key. The bytes it goes
// over are laid down in FORMAT.md, "Content keys": they are the same on every machine and never
// change.
//
// A key covers the structure of tuples, lists and dicts (with the order of a dict), each tensor's
// dtype, shape and elements, and each plain value. It does not cover where a tensor lies, its
// strides, or whether it requires grad. An outermost tuple of one item counts as that item.
//
// A tensor without plain bytes (sparse, quantized, nested, a subclass, ...) or a value that is no
// plain one is kInvalidArgument; so nothing is ever left out of a key silently. What torch throws
// when it copies a tensor (a device out of memory) passes through. Any thread; needs no GIL.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace modcache::tensor {

// 64 hexadecimal digits.
Result<std::string> content_key(const at::IValue& input);

// One key per row: the first dimension of every tensor is the number of rows, and what is no
// tensor belongs to every row. Key i is content_key() of the input with each tensor replaced by
// its row i. kInvalidArgument also for an input without a tensor, for a tensor without dimensions
// and for tensors of different numbers of rows.
Result<std::vector<std::string>> content_keys(const at::IValue& input);

// An input taken apart, for Python, where lists and dicts may hold what TorchScript has no type
// for. `structure` lists its parts from the outside inwards: "(2;" is a tuple, "[2;" a list, "{2;"
// a dict of two items (key, value, key, value), and "." the next of `leaves`.
struct TakenApart {
  std::string_view structure;
  c10::ArrayRef<at::IValue> leaves;
};

Result<std::string> content_key(const TakenApart& input);
Result<std::vector<std::string>> content_keys(const TakenApart& input);

}  // namespace modcache::tensor
