// SPDX-License-Identifier: Apache-2.0
//
// The operator's work for a TorchScript module: identify it, look up, run it where necessary. All
// functions throw for callers' mistakes; the module's own exceptions pass unchanged.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "module/call/call_keys.h"
#include "module/call/declared.h"
#include "module/identity/inventory.h"
#include "tensor/input.h"
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
  cache::CachePtr cache = {};                      // null: the current one, in its present mode
  cache::Mode mode = cache::Mode::kOff;            // of `cache`
};

// Returns the stored value, or runs the module and stores its result unless a rule forbids it. With
// keys of rows it runs missing rows only. With Want::kTensor, a batch whose rows do not fit
// together is run whole; with Want::kAny such rows are a list, and `are_apart` is set.
at::IValue lookup_or_run(const ScriptedCall& call, CallKeys keys, bool* are_apart = nullptr);

// Runs the method without the cache: for a call while the mode is off, which should cost no more
// than calling the method. The last `arguments` of the stack begin with the module and the input;
// the result replaces all of them.
void run_method(torch::jit::Stack& stack, std::size_t arguments, const std::string& name, Want want,
                const Operator& asked = {});

// Returns the fingerprint that lookup_or_run uses. Throws when the module has none, saying why.
std::string fingerprint(const at::IValue& module, const std::string& method);

// Makes all methods hash everything anew at their next call. Returns the fingerprint of forward;
// empty for a module that has no forward or no fingerprint.
std::string refresh_fingerprint(const at::IValue& module);

// The state of a TorchScript module before a run, for Python's explain(). Runs, counts and stores
// nothing.
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

// The manifest (call/manifest.h) of a TorchScript module as it is now.
// Describes the module's code and, `with_weights`, its tensors and attributes, which have to be
// read for that.
std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights);

// A TorchScript module as Python holds it from call to call, so that it need not become an argument
// of each of them.
// Does not keep the module alive. Thread-safe.
class ScriptedModule : public torch::CustomClassHolder {
 public:
  // Throws for a value that is not an object.
  explicit ScriptedModule(const at::IValue& module);

  // Returns null for a module that no longer lives.
  ObjectPtr object() const { return object_.lock(); }

  bool has_method(const std::string& method) const;

 private:
  const c10::weak_intrusive_ptr<c10::ivalue::Object> object_;
};

// KeptAttributes: the attributes of a scripted module and of all objects in it, and the state of
// the CPU's random generator, as they are now. A run that the caller did not ask for (a trial of a
// row of another length) may write some of them, for instance the greatest length that was seen,
// and the model must not notice.
//
// What is changed in place, such as the elements of a tensor or a list, is not restored. For one
// thread; another one that writes an attribute meanwhile loses what it wrote.
class KeptAttributes {
 public:
  explicit KeptAttributes(const ObjectPtr& module);

  // Puts back each attribute that is another value than it was.
  void restore() const;

 private:
  struct Kept {
    ObjectPtr object;
    std::vector<at::IValue> values;
  };

  std::vector<Kept> kept_;
  at::Tensor random_state_;
};

// Loads the TorchScript module in `path` onto `device`. None of its parameters and buffers requires
// grad. Throws what torch throws.
at::IValue load_without_grad(const std::string& path, at::Device device);

}  // namespace modcache::module
