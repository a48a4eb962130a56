// SPDX-License-Identifier: Apache-2.0
//
// The operator's work for a TorchScript module: identify it, look up, run it where necessary. All
// functions throw for callers' mistakes; the module's own exceptions pass unchanged.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>

#include "module/call/batch_keys.h"
#include "module/call/declared.h"
#include "tensor/row_padding.h"

namespace modcache::module {

// A module that is loaded when it has to run. Nothing in it requires grad.
struct Unloaded {
  std::string name;         // for messages
  std::string fingerprint;  // the one that it will have; used where no scope is given
  std::function<at::IValue()> load;
};

struct ScriptedCall {
  const at::IValue& module;  // None: see `unloaded`
  const at::IValue& input;
  const std::string& scope;  // empty: the fingerprint
  const std::string& method;
  Want want = Want::kTensor;
  const Unloaded* unloaded = nullptr;
  Operator asked = {};
  std::optional<tensor::RowPadding> padding = {};  // of rows with lengths of their own
  bool is_ragged = false;                          // see CallParts
  bool is_no_plain_hit = false;                    // the fast path (call/fast_path.h) said so
  std::optional<cache::Mode> mode = {};            // where the caller asked for it already
};

// Returns the stored value, or runs the module and stores its result unless a rule forbids it.
at::IValue lookup_or_run(const ScriptedCall& call, const std::string& key);

// Runs the method without the cache: for a call while the mode is off, which should cost no more
// than calling the method. The last `arguments` of the stack begin with the module and the input;
// the result replaces all of them.
void run_method(torch::jit::Stack& stack, std::size_t arguments, const std::string& name, Want want,
                const Operator& asked = {});

// Does the same for one key per row, running only missing rows. With Want::kTensor, a batch whose
// rows do not fit together is run whole.
Rows lookup_or_run_rows(const ScriptedCall& call, BatchKeys keys);

// Returns the fingerprint that lookup_or_run uses. Throws when the module has none, saying why.
std::string fingerprint(const at::IValue& module, const std::string& method);

// Makes all methods hash everything anew at their next call. Returns the fingerprint of forward;
// empty for a module that has no forward or no fingerprint.
std::string refresh_fingerprint(const at::IValue& module);

}  // namespace modcache::module
