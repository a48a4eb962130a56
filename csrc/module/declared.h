// SPDX-License-Identifier: Apache-2.0
//
// Declared: what the operator and the method that it runs say of a result, so that a hit has the
// same TorchScript type as a miss. All throw for callers' mistakes.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <string>
#include <vector>

#include "module/rows_call.h"
#include "tensor/tree.h"
#include "tensor/whole_value.h"

namespace modcache::module {

// What the operator gives back. kTensor: a method that returns anything else is a caller's mistake.
enum class Want { kTensor, kAny };

// For messages: who was asked, and how to get what it does not give.
struct Operator {
  const char* name = "cache::lookup_or_run";
  const char* cure = "use cache::lookup_or_run_any";
};

// Rows that do not fit together are apart: each by itself.
struct Rows {
  at::IValue together;
  std::optional<std::vector<at::IValue>> apart;
};

// What a method declares to return; null: it says nothing. REQUIRES: the class has it.
c10::TypePtr declared_type(const c10::ClassType& type, const std::string& method);

struct Declared {
  std::string who;    // "Encoder.forward", for messages
  c10::TypePtr type;  // of the method's result; null: it says nothing
  Want want = Want::kTensor;
  Operator asked = {};

  // Throws when the operator promises a Tensor and this is none.
  void check_wanted(bool is_tensor, const std::string& given) const;

  // What is stored, as the value that the method returns; nothing when it is of another type.
  std::optional<at::IValue> value_of(const tensor::Node& root,
                                     const std::vector<at::Tensor>& tensors) const;
  std::optional<at::IValue> value_of(const tensor::WholeValue& hit,
                                     std::optional<at::Device> device) const;

  // What the rows of `call` give, once all are there; nothing when they are of another type. With
  // Want::kTensor rows that do not fit together are a caller's mistake.
  std::optional<Rows> rows_of(RowsCall& call) const;
};

}  // namespace modcache::module
