// SPDX-License-Identifier: Apache-2.0
#include "module/eager.h"

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "arguments.h"
#include "module/identity.h"
#include "module/optimizer_steps.h"
#include "module/recall.h"
#include "operators.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

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

namespace {

c10::List<std::int64_t> list_of(const std::vector<std::int64_t>& numbers) {
  return c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(numbers));
}

c10::intrusive_ptr<module::RowsRun> rows_run(const at::IValue& run) {
  return run.toCustomClass<module::RowsRun>();
}

// The module was loaded meanwhile. `who`: its watch, or itself if it is scripted; None: the caller
// named it.
template <typename AnyCall>
void restart(AnyCall& call, const at::IValue& who) {
  if (who.isInt()) call.note_weights(module::contents_of_watch(who.toInt()));
  if (who.isObject()) {
    const auto identity = module::identity_of(who.toObject(), call.parts().method);
    call.note_weights(identity->fingerprint(who.toObject()).weights);
  }
  call.begin_run();
}

}  // namespace

void eager_recall(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 7);
  const std::string& key = arguments[3].toStringRef();
  check_key("modcache.lookup_or_run", key);
  std::optional<at::Tensor> found = module::recall_eager(
      {arguments[0].toStringRef(), arguments[1].toStringRef(), arguments[2].toTensor(), key},
      {arguments[4].toTensorVector(), arguments[5].toInt(), arguments[6].toStringRef()});
  torch::jit::drop(*stack, 7);
  torch::jit::push(*stack, found.has_value() ? at::IValue(*std::move(found)) : at::IValue());
}

void scripted_recall(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 5);
  const std::string& scope = arguments[1].toStringRef();
  const std::string& key = arguments[4].toStringRef();
  check_key("modcache.lookup_or_run", key);
  if (!scope.empty()) check_scope("modcache.lookup_or_run", scope);
  std::optional<at::Tensor> found = module::recall_scripted(
      arguments[0].toInt(), {scope, arguments[2].toStringRef(), arguments[3].toTensor(), key});
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, found.has_value() ? at::IValue(*std::move(found)) : at::IValue());
}

std::int64_t may_recall_address() {
  int (*const function)() = [] { return module::may_recall() ? 1 : 0; };
  return reinterpret_cast<std::intptr_t>(function);
}

void note_scripted(const c10::OperatorHandle&, Stack* stack) {
  const std::int64_t number = module::note_scripted(torch::jit::last(*stack, 1)[0]);
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, number);
}

void forget_scripted(std::int64_t number) { module::forget_scripted(number); }

at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  return tensor::select_rows(tensor, rows);
}

void eager_begin(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 7);
  const std::string& key = arguments[3].toStringRef();
  check_key("modcache.lookup_or_run", key);
  module::CallParts parts;
  parts.scope = arguments[0].toStringRef();
  parts.method = arguments[1].toStringRef();
  parts.class_name = arguments[6].toStringRef();
  parts.weights = module::contents_of_watch(arguments[5].toInt());
  module::Begun begun =
      module::begin_eager(std::move(parts), key, arguments[2], arguments[4].toInt());
  torch::jit::drop(*stack, 7);
  torch::jit::push(*stack, static_cast<std::int64_t>(begun.next));
  torch::jit::push(*stack, std::move(begun.value));
  torch::jit::push(*stack, begun.run.defined() ? at::IValue(std::move(begun.run)) : at::IValue());
}

void eager_finish(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  arguments[0].toCustomClass<module::Run>()->call.finish(
      tensor::flatten_tagged(arguments[1]), {arguments[2].toStringRef(), arguments[3].toInt()});
  torch::jit::drop(*stack, 4);
}

void eager_restart(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 2);
  restart(arguments[0].toCustomClass<module::Run>()->call, arguments[1]);
  torch::jit::drop(*stack, 2);
}

void eager_abandon(const c10::OperatorHandle&, Stack* stack) {
  torch::jit::last(*stack, 1)[0].toCustomClass<module::Run>()->call.abandon();
  torch::jit::drop(*stack, 1);
}

void eager_begin_rows(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 7);
  module::CallParts parts;
  parts.scope = arguments[0].toStringRef();
  parts.method = arguments[1].toStringRef();
  parts.weights = module::contents_of_watch(arguments[5].toInt());
  parts.class_name = arguments[6].toStringRef();
  module::BatchKeys keys = checked_keys("modcache.lookup_or_run", arguments[3]);
  module::RowsBegun begun = module::begin_eager_rows(std::move(parts), std::move(keys),
                                                     arguments[2], arguments[4].toInt());
  torch::jit::drop(*stack, 7);
  torch::jit::push(*stack, static_cast<std::int64_t>(begun.next));
  torch::jit::push(*stack, list_of(begun.rows));
  torch::jit::push(*stack, begun.run.defined() ? at::IValue(std::move(begun.run)) : at::IValue());
}

void eager_finish_rows(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  rows_run(arguments[0])
      ->call.finish_run(tensor::flatten_tagged(arguments[1]),
                        {arguments[2].toStringRef(), arguments[3].toInt()});
  torch::jit::drop(*stack, 4);
}

void eager_next_rows(const c10::OperatorHandle&, Stack* stack) {
  const auto run = rows_run(torch::jit::last(*stack, 1)[0]);
  const auto rows = run->call.next_rows();
  if (rows.has_value()) run->call.begin_run();
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, rows.has_value() ? at::IValue(list_of(*rows)) : at::IValue());
}

void eager_restart_rows(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 2);
  restart(rows_run(arguments[0])->call, arguments[1]);
  torch::jit::drop(*stack, 2);
}

void eager_abandon_rows(const c10::OperatorHandle&, Stack* stack) {
  rows_run(torch::jit::last(*stack, 1)[0])->call.abandon();
  torch::jit::drop(*stack, 1);
}

void eager_rows(const c10::OperatorHandle&, Stack* stack) {
  module::TaggedRows rows = module::eager_rows(rows_run(torch::jit::last(*stack, 1)[0])->call);
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, rows.apart.has_value());
  torch::jit::push(*stack, rows.apart.has_value()
                               ? at::IValue(c10::ivalue::Tuple::create(*std::move(rows.apart)))
                               : std::move(rows.together));
}

}  // namespace modcache::ops
