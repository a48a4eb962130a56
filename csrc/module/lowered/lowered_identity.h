// SPDX-License-Identifier: Apache-2.0
//
// The identity of a module whose call was lowered (lowering.h), made from a recipe and the current
// values of its attributes, without the module. It is to a lowered call what Identity is to a
// module.
//
// TorchScript folds these at freezing, when all attributes are constants. All functions may be
// called from any thread, and keep no part of a module alive.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "module/watch/watched_contents.h"

namespace modcache::module {

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
std::shared_ptr<const WatchedContents> last_identified(const std::string& fingerprint);

// Call it after the module with this fingerprint ran with gradients: an optimizer may write its
// tensors without a trace, so the next call hashes them anew.
void distrust(const std::string& fingerprint);

// The tensors in the values.
std::vector<at::Tensor> tensors_of(const at::IValue& attributes);

// Returns a number that changes when one of the values is written to or replaced, except by a write
// that leaves no trace. The caller must keep the old values alive until it asks again. For tensors
// that count no versions (inference mode) the number covers the contents.
std::int64_t state_of(const at::IValue& attributes);

}  // namespace modcache::module
