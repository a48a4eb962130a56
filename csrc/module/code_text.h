// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript method as text that says what the method does and not how its variables are
// called: torch numbers repeated names anew each time it saves a module, so that `input0` of a
// compiled module is `input2` of the same module loaded.
#pragma once

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/serialization/python_print.h>

#include <string>
#include <vector>

namespace modcache::module {

// The source of `function`, with the variables of each name numbered in the order of appearance:
// x, x0, x1. Arguments keep their names. Constants that are no literals are appended to
// `constants`, and their place there is what the text has; types that the text names are added to
// `dependencies`.
std::string text_of(const torch::jit::GraphFunction& function, std::vector<at::IValue>& constants,
                    torch::jit::PrintDepsTable& dependencies);

}  // namespace modcache::module
