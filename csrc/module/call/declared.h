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

#include "module/call/call.h"
#include "tensor/tree.h"

namespace modcache::module {

// The operator's return type. With kTensor, a method that returns anything else is a caller's
// mistake.
enum class Want { kTensor, kAny };

// For messages: which operator was called, and what to call for a result that it cannot return.
struct Operator {
  const char* name = "cache::lookup_or_run";
  const char* cure = "use cache::lookup_or_run_any";
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

  // Returns a stored value as the method would return it; nullopt when it is of another type, or,
  // with Want::kTensor, when it is rows that do not fit together: then `why_apart` says why. The
  // caller then rejects it. With Want::kAny such rows are a list.
  std::optional<at::IValue> value_of(CallValue value, std::string& why_apart) const;

 private:
  std::optional<at::IValue> rebuilt(const tensor::Flat& flat) const;
};

}  // namespace modcache::module
