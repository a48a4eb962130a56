// SPDX-License-Identifier: Apache-2.0
//
// A lowered call (lowering.h): its graph runs the module where necessary, and asks these objects
// what to do. An operator of the graph makes each, and one thread at a time uses it. When it is
// destroyed before its end, as when the module raises, it abandons itself. All throw for callers'
// mistakes.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "module/call/call.h"
#include "module/call/call_keys.h"
#include "module/call/declared.h"
#include "module/call/run.h"
#include "module/watch/tensor_watch.h"

namespace modcache::module {

// The identity of a module whose call was lowered (lowering.h), made from a recipe and the current
// values of its attributes, without the module. It is to a lowered call what Identity is to a
// module.
//
// TorchScript folds these at freezing, when all attributes are constants. All functions may be
// called from any thread, and keep no part of a module alive.
struct LoweredIdentity {
  std::string fingerprint;         // empty: not wanted, or there is none
  std::uint64_t grad_pattern = 0;  // a hash of which tensors require grad; 0 when none does
  std::int64_t requiring_grad = 0;
};

// `attributes` is a tuple with a value for each step of the recipe that is not a submodule. The
// fingerprint is the one that Identity gives the module, and is hashed anew only when something
// changed. A recipe that this version does not understand gives none, which is logged.
LoweredIdentity identify(const std::string& recipe, const at::IValue& attributes,
                         bool wants_fingerprint);

// Returns the contents that this thread's last identify() saw, if it gave this fingerprint;
// otherwise null.
std::shared_ptr<const TensorWatch> last_identified(const std::string& fingerprint);

// Call it after the module with this fingerprint ran with gradients: an optimizer may write its
// tensors without a trace, so the next call hashes them anew.
void distrust(const std::string& fingerprint);

// The tensors in the values.
std::vector<at::Tensor> tensors_of(const at::IValue& attributes);

// Returns a number that changes when one of the values is written to or replaced, except by a write
// that leaves no trace. The caller must keep the old values alive until it asks again. For tensors
// that count no versions (inference mode) the number covers the contents.
std::int64_t state_of(const at::IValue& attributes);

// An opaque wrapper for values that are passed to these operators. TorchScript assumes that an
// operator with effects writes to every tensor that it is given, hence to all weights, which
// freezing would then not turn into constants. It does not look into the wrapper.
struct Opaque final : torch::CustomClassHolder {
  explicit Opaque(at::IValue wrapped) : value(std::move(wrapped)) {}
  const at::IValue value;
};

// The constant part of a call, which the graph has.
struct LoweredConstants {
  std::string scope;         // empty: the fingerprint
  LoweredIdentity identity;  // of the module
  std::string method;
  std::string class_name;
  Declared declared;
};

// A lowered call between its operators.
class LoweredCall : public torch::CustomClassHolder {
 public:
  // The state_of() the module's attributes before and after the run.
  struct States {
    std::int64_t before;
    std::int64_t after;
  };

  // Looks the call up. REQUIRES: keys of rows are as many as the input has rows.
  LoweredCall(LoweredConstants constants, at::IValue input, CallKeys keys);

  // Returns whether the graph has to run the module (again).
  bool must_run() const { return must_run_; }
  // Begins a run, and returns its input. Compares `fingerprint`, that of the module right before
  // the run, with that of the call, which may be much older. `replaceable` holds the attributes
  // that the run may replace. They are kept alive during the run: otherwise a new tensor at the
  // address of an old one would pass for it.
  at::IValue begin_run(const std::string& fingerprint, const at::IValue& replaceable);
  void finish_run(const at::IValue& result, const States& states);
  // After the runs: whether the result of the last one is the value; otherwise value() has it.
  bool is_last_run() const { return is_last_run_; }
  const at::IValue& value() const { return *value_; }

 private:
  bool prepare(CallParts& parts, tensor::Per per, std::int64_t rows) const;
  RunFacts facts_of(const tensor::Flat& result, const States& states);
  bool accept(CallValue value, std::string& why_apart);
  // Finds out whether there is another step. `has_own_result`: the graph can return the result of
  // the last step.
  void next_step(bool has_own_result);

  const LoweredConstants constants_;
  const at::IValue input_;
  std::unique_ptr<Run> run_;  // null: the module is run uncached, or not at all
  bool must_run_ = true;
  bool is_last_run_ = false;
  std::optional<at::IValue> value_;
  bool is_another_ = false;
  std::shared_ptr<const TensorWatch> weights_;
  // All runs of a call are stored under the state that the module had before the first of them.
  std::optional<std::int64_t> first_state_;
  std::optional<std::vector<at::Tensor>> kept_;
};

}  // namespace modcache::module
