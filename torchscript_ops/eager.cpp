// SPDX-License-Identifier: Apache-2.0
#include "module/eager.h"

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <utility>

#include "arguments.h"
#include "module/optimizer_steps.h"
#include "operators.h"

namespace modcache::ops {

using torch::jit::Stack;

std::int64_t eager_watch() { return module::new_watch(); }
void eager_unwatch(std::int64_t watch) { module::forget_watch(watch); }
void eager_refresh(std::int64_t watch) { module::refresh_watch(watch); }

void optimizer_stepped(const std::vector<at::Tensor>& tensors) {
  module::note_optimizer_step(tensors);
}

std::string eager_tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors) {
  return module::tensors_digest(watch, tensors);
}

void eager_begin(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 7);
  module::CallParts parts;
  parts.scope = arguments[0].toStringRef();
  parts.method = arguments[1].toStringRef();
  parts.key = arguments[3].toStringRef();
  parts.class_name = arguments[6].toStringRef();
  check_key("modcache.lookup_or_run", parts.key);
  const std::int64_t params_grad_pattern = arguments[4].toInt();
  // arguments[5], the watch, is what later calls of the same module have in common.
  module::Begun begun = module::begin_eager(std::move(parts), arguments[2], params_grad_pattern);
  torch::jit::drop(*stack, 7);
  torch::jit::push(*stack, static_cast<std::int64_t>(begun.next));
  torch::jit::push(*stack, std::move(begun.value));
  torch::jit::push(*stack, begun.run.defined() ? at::IValue(std::move(begun.run)) : at::IValue());
}

void eager_finish(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  const auto run = arguments[0].toCustomClass<module::Run>();
  at::Tensor result =
      run->call.finish(arguments[1], arguments[2].toStringRef(), arguments[3].toInt());
  torch::jit::drop(*stack, 4);
  torch::jit::push(*stack, std::move(result));
}

void eager_abandon(const c10::OperatorHandle&, Stack* stack) {
  torch::jit::last(*stack, 1)[0].toCustomClass<module::Run>()->call.abandon();
  torch::jit::drop(*stack, 1);
}

}  // namespace modcache::ops
