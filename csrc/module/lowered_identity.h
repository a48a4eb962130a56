// SPDX-License-Identifier: Apache-2.0
//
// Who a module is whose call was lowered (lowering.h): from a recipe and the values that its
// attributes have now, without the module. What Identity is to a module that is there.
//
// TorchScript folds these at freezing, when all attributes are constants. All functions may be
// called from any thread, and keep no part of a module alive.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "module/watched_contents.h"

namespace modcache::module {

struct LoweredIdentity {
  std::string fingerprint;         // empty: not asked for, or there is none
  std::uint64_t grad_pattern = 0;  // which tensors require grad, hashed; 0 when none does
  std::int64_t requiring_grad = 0;
};

// `attributes`: a tuple with a value for each step of the recipe that is no submodule. The
// fingerprint is the one that Identity gives the module, hashed anew only when something changed.
// There is none by a recipe that this version does not understand, which is logged.
LoweredIdentity identify(const std::string& recipe, const at::IValue& attributes,
                         bool wants_fingerprint);

// What this thread's last identify() looked at, if it gave this fingerprint; else null.
std::shared_ptr<const WatchedContents> last_identified(const std::string& fingerprint);

// The module with this fingerprint ran with gradients: an optimizer may write its tensors without
// a trace, so the next call hashes them anew.
void distrust(const std::string& fingerprint);

// The tensors in the values.
std::vector<at::Tensor> tensors_of(const at::IValue& attributes);

// A number that differs when one of the values was written to, or is another, unless the write
// left no trace; the old ones are to be kept until it is asked for again. Of tensors that count no
// versions (inference mode) the contents go into it.
std::int64_t state_of(const at::IValue& attributes);

}  // namespace modcache::module
