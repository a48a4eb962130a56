// SPDX-License-Identifier: Apache-2.0
//
// The short way to what memory holds, for Python, where each operator costs a microsecond: one
// question, answered with the value of a plain hit. Whatever else a call may be (a miss, an entry
// on disk only, a structured value, a mode that compares, a module in training) is answered with
// nothing, and has changed nothing: the long way through Call then deals with it.
//
// Thread-safe; usable in a forked child.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace modcache::module {

// Whether the mode lets a stored value be returned without running anything.
bool may_recall();

struct RecallParts {
  const std::string& scope;
  const std::string& method;
  const at::Tensor& input;
  const std::string& key;
};

// What Python saw of an eager module just now.
struct EagerSight {
  // All tensors of the module; with grad mode off and `watch` 0 none need be given.
  const std::vector<at::Tensor>& tensors;
  // 0: a name stands for the module. Else the tensors must have the digest `weights` still.
  std::int64_t watch;
  const std::string& weights;
};
std::optional<at::Tensor> recall_eager(const RecallParts& parts, const EagerSight& sight);

// A TorchScript module under a number, so that it need not become an argument at each call. It is
// not kept alive.
std::int64_t note_scripted(const at::IValue& module);
void forget_scripted(std::int64_t number);

// `parts.scope` empty: the module's fingerprint. Nothing also for a module that is gone, or that
// lacks the method.
std::optional<at::Tensor> recall_scripted(std::int64_t number, const RecallParts& parts);

}  // namespace modcache::module
