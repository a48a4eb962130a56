// SPDX-License-Identifier: Apache-2.0
//
// Declared: the type that the operator and the method declare for a result, so that a hit has the
// same TorchScript type as a miss. All functions throw for callers' mistakes.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <string>
#include <vector>

#include "module/call/rows_call.h"
#include "tensor/tree.h"
#include "tensor/whole_value.h"

namespace modcache::module {

// The operator's return type. With kTensor, a method that returns anything else is a caller's
// mistake.
enum class Want { kTensor, kAny };

// For messages: which operator was called, and what to call for a result that it cannot return.
struct Operator {
  const char* name = "cache::lookup_or_run";
  const char* cure = "use cache::lookup_or_run_any";
};

// The rows of a result. Rows that do not fit together are `apart`, each as a value of its own.
struct Rows {
  at::IValue together;
  std::optional<std::vector<at::IValue>> apart;
};

// Returns the declared return type of a method; null when it declares none. REQUIRES: the class has
// the method.
c10::TypePtr declared_type(const c10::ClassType& type, const std::string& method);

struct Declared {
  std::string who;    // "Encoder.forward", for messages
  c10::TypePtr type;  // of the method's result; null: not declared
  Want want = Want::kTensor;
  Operator asked = {};

  // Throws when the operator promises a Tensor and the result is none. `given` describes the
  // result.
  void check_wanted(bool is_tensor, const std::string& given) const;

  // Returns a stored value as the method would return it; nothing when it is of another type.
  std::optional<at::IValue> value_of(const tensor::Node& root,
                                     const std::vector<at::Tensor>& tensors) const;
  std::optional<at::IValue> value_of(const tensor::WholeValue& hit,
                                     std::optional<at::Device> device) const;

  // Returns the rows of `call`, which must all be there; nothing when they are of another type, or,
  // with Want::kTensor, when they do not fit together. The caller then calls reject_hits().
  std::optional<Rows> rows_of(RowsCall& call) const;
};

}  // namespace modcache::module
