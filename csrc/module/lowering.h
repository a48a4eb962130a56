// SPDX-License-Identifier: Apache-2.0
//
// Lowering: writes lookup_or_run out as graph. The operator takes a module and runs its method,
// which no pass of TorchScript knows: freezing drops the method, as nothing seems to call it. What
// takes its place calls it for all to see:
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
// and with one key per row a loop in place of the `if`. Values, entries, rules and modes are those
// of before. Freezing turns attributes into constants, and _identity with them: then the scope is
// fixed, and a hit does not touch the module. A run asks who the module is once more: what other
// weights give is not stored.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace modcache::module {

// Rewrites every call in every method of `module` and its submodules, in place; not while another
// thread runs, saves or changes it. Modules of one TorchScript class share its methods: all of them
// are lowered, which changes nothing of what they do. Methods that ran before go on as they are:
// copies of the module (freezing, saving) are made of the new graphs. Throws when a call cannot be
// lowered, naming each and why; nothing was changed then.
void lower(const torch::jit::Module& module);

// A lowered and frozen copy, with weights of its own; keeps `methods` beside forward. The other
// parameter is torch's. Throws as lower() and torch do, and for a model in training mode.
torch::jit::Module freeze(const torch::jit::Module& module, const std::vector<std::string>& methods,
                          bool optimize_numerics);

}  // namespace modcache::module
