// SPDX-License-Identifier: Apache-2.0
//
// The library's half of caching an eager Python module: Python walks the module, hashes its code
// and plain attributes, and runs it; tensors, rules and storage are dealt with here.
//
// Watches are numbered, and live until they are forgotten. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/call.h"

namespace modcache::module {

std::int64_t new_watch();
void forget_watch(std::int64_t watch);

// 32 hexadecimal digits over the contents of `tensors` in their order; hashes what may have
// changed since the last call with this watch. Throws for an unknown watch, and for a tensor
// that cannot be hashed, saying why.
std::string tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors);

// The next digest hashes everything anew.
void refresh_watch(std::int64_t watch);

// A call between its two halves, as Python holds it. Let go of without _finish or _abandon, it
// abandons itself.
struct Run : torch::CustomClassHolder {
  explicit Run(CallParts parts) : call(std::move(parts)) {}
  Call call;
};

enum class Next : std::int64_t { kReturn = 0, kRunAndFinish = 1, kJustRun = 2 };

struct Begun {
  Next next = Next::kJustRun;
  at::Tensor value;             // kReturn
  c10::intrusive_ptr<Run> run;  // kRunAndFinish
};

// `scope` empty: the module could not be identified, or is expected to give a graph; its result
// is judged and counted, not kept. `params_grad_pattern`: which tensors of the module require grad,
// hashed; 0 when none does.
Begun begin_eager(CallParts parts, const at::IValue& input, std::int64_t params_grad_pattern);

}  // namespace modcache::module
