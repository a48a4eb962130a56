// SPDX-License-Identifier: Apache-2.0
//
// Lowering: replaces lookup_or_run by explicit nodes of the graph. The operator takes a module and
// runs its method, which no pass of TorchScript knows: freezing drops the method, as nothing seems
// to call it. The nodes that replace the operator call the method visibly:
//
//     identity = cache::_identity(recipe, (the module's attributes...), scope)
//     call = cache::_lowered_call(scope, identity, ..., input, key, ...)
//     if cache::_is_hit(call):
//         out = cache::_hit(call)
//     else:
//         cache::_begin_run(call, cache::_identity_of_run(...))
//         out = module.forward(input)
//         cache::_finish_run(call, out, <the attributes' state before and after the run>)
//
// With one key per row there is a loop in place of the `if`. Values, entries, rules and modes are
// the same as before. Freezing turns attributes into constants, and _identity with them: then the
// scope is fixed, and a hit does not touch the module. A run asks for the identity once more, so
// that the result of other weights is not stored.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace modcache::module {

// Rewrites every call in every method of `module` and its submodules, in place. No other thread may
// run, save or change the module meanwhile. Modules of one TorchScript class share its methods, so
// all of them are lowered, which does not change their behaviour. Methods that have run before
// continue with their old graphs; copies of the module (freezing, saving) get the new ones. Throws
// when a call cannot be lowered, with the reason for each such call, and has then changed nothing.
void lower(const torch::jit::Module& module);

// Returns a lowered and frozen copy with weights of its own; keeps `methods` beside forward.
// `optimize_numerics` is torch's parameter. Throws as lower() and torch do, and for a model in
// training mode.
torch::jit::Module freeze(const torch::jit::Module& module, const std::vector<std::string>& methods,
                          bool optimize_numerics);

}  // namespace modcache::module
