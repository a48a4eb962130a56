// SPDX-License-Identifier: Apache-2.0
//
// The library's half of a call of an eager Python module. Python walks the module, hashes its code
// and plain attributes, and runs it; rules and storage are here, and watch/watch.h has its tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>

#include "module/call/call.h"
#include "module/call/run.h"

namespace modcache::module {

// A run that Python makes. When it is destroyed before its end, it abandons itself.
struct EagerRun : torch::CustomClassHolder {
  explicit EagerRun(std::unique_ptr<Run> of_call) : run(std::move(of_call)) {}
  const std::unique_ptr<Run> run;
};

// Begins a call. `parts.scope` is empty when the module could not be identified or is expected to
// return a graph; its result is then judged and counted, but not stored. `params_grad_pattern` is a
// hash of which tensors of the module require grad; 0 when none does. A run has started. Neither
// value nor run: the module is run uncached, and that was counted. Throws when the input does not
// have as many rows as there are keys, and under strict=true where a rule forbids caching.
Begun begin_eager(CallParts parts, CallKeys keys, const at::IValue& input,
                  std::int64_t params_grad_pattern);

// Returns a value as Python takes it (tensor/tree.h). Rows that do not fit together are a tuple.
at::IValue tagged_value(CallValue value);

}  // namespace modcache::module
