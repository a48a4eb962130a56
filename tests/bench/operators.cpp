// SPDX-License-Identifier: Apache-2.0
//
// Operators that do what a call of the cache cannot do without, and nothing else: measures of the
// machine, for call_bench.cpp and for the suite's scripted loops.
#include <torch/library.h>
#include <torch/script.h>

namespace {

using torch::jit::pop;
using torch::jit::Stack;

// Takes the arguments of cache::lookup_or_run and returns its input.
void no_operation(const c10::OperatorHandle&, Stack* stack) {
  const c10::IValue method = pop(*stack);
  const c10::IValue scope = pop(*stack);
  const c10::IValue key = pop(*stack);
  c10::IValue input = pop(*stack);
  const c10::IValue module = pop(*stack);
  stack->push_back(std::move(input));
}

// Takes the same and calls the method.
void call_method(const c10::OperatorHandle&, Stack* stack) {
  const c10::IValue name = pop(*stack);
  const c10::IValue scope = pop(*stack);
  const c10::IValue key = pop(*stack);
  c10::IValue input = pop(*stack);
  const auto module = pop(*stack).toObject();
  torch::jit::Function& method = module->type()->getMethod(name.toStringRef());
  stack->push_back(method({module, std::move(input)}));
}

// As with the cache's own, nothing may be assumed of them: TorchScript would fold equal calls of
// pure operators into one.
c10::FunctionSchema schema_of(const std::string& name) {
  const std::string arguments =
      "(Any module, Any input, str key, str scope=\"\", str method=\"forward\") -> Tensor";
  return torch::schema((name + arguments).c_str(), c10::AliasAnalysisKind::CONSERVATIVE);
}

TORCH_LIBRARY(modcache_bench, library) {
  library.def(schema_of("no_operation"),
              torch::CppFunction::makeFromBoxedFunction<&no_operation>());
  library.def(schema_of("call_method"), torch::CppFunction::makeFromBoxedFunction<&call_method>());
}

}  // namespace
