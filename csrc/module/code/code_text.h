// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript method as text that does not depend on the names of its variables: torch numbers
// repeated names anew each time it saves a module, so `input0` of a compiled module may be `input2`
// of the same module loaded.
#pragma once

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/serialization/python_print.h>

#include <string>
#include <vector>

namespace modcache::module {

// Returns the source of `function`, with the variables of each name numbered in the order of
// appearance: x, x0, x1. Arguments keep their names. Constants that are not literals are appended
// to `constants`, and the text has their index there; types that the text names are added to
// `dependencies`.
std::string text_of(const torch::jit::GraphFunction& function, std::vector<at::IValue>& constants,
                    torch::jit::PrintDepsTable& dependencies);

}  // namespace modcache::module
