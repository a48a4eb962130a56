// SPDX-License-Identifier: Apache-2.0
//
// The state of a TorchScript module before a run, for Python's explain(). Runs, counts and stores
// nothing.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

#include "tensor/input.h"

namespace modcache::module {

struct ScriptedDryRun {
  std::uint64_t params_grad_pattern = 0;
  std::int64_t requiring_grad = 0;
  bool gave_grad = false;  // the last run under this pattern gave a result that requires grad
  std::string refused_for;
  std::string refusal;
  std::string refused_scope;
};
ScriptedDryRun scripted_dry_run(const at::IValue& module, const std::string& method,
                                const at::IValue& input, tensor::Per per);

}  // namespace modcache::module
