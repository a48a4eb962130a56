// SPDX-License-Identifier: Apache-2.0
//
// Eager modules, which Python runs: the watch over a module's tensors, and a call between its two
// halves. Values are tagged where they are structured (tensor/tree.h).
//
// Python calls methods of classes here. With torch 2.13 an operator that is given an object costs
// 25 us, a method 5 us, and a static one 1 us: so what each hit needs is static.
#include "module/eager/eager.h"

#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "module/call/manifest.h"
#include "module/call/rules.h"
#include "module/watch/optimizer_steps.h"
#include "module/watch/watch.h"
#include "needs_torchscript.h"
#include "registration.h"
#include "tensor/row_padding.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::ops {
namespace {

using module::EagerRun;
using module::Step;
using RunPtr = c10::intrusive_ptr<EagerRun>;
using module::Watch;
using module::WatchPtr;

constexpr const char* kLookupOrRun = "modcache.lookup_or_run";

// Static, as they are called at each look at a module and at each run.
std::string digest_of_watched(const WatchPtr& watch, const std::vector<at::Tensor>& tensors) {
  return watch->digest(tensors);
}
void refresh_watch(const WatchPtr& watch) { watch->refresh(); }

module::CallParts parts_of(const std::string& scope, const std::string& method,
                           const std::optional<WatchPtr>& watch, const std::string& class_name) {
  module::CallParts parts;
  parts.scope = scope;
  parts.method = method;
  parts.class_name = class_name;
  if (watch.has_value()) parts.weights = (*watch)->tensors();
  return parts;
}

at::IValue numbers(const std::vector<std::int64_t>& numbers) {
  return c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(numbers));
}

// The next step for Python: take the value; make the run; or just run the module.
enum class Next : std::int64_t { kReturn = 0, kRun = 1, kJustRun = 2 };
// The answer, the value if it is to be returned, and the run if there is to be one.
using Begun = std::tuple<std::int64_t, at::IValue, at::IValue>;

// Whether a value is a list of rows that do not fit together, and it.
at::IValue rows_value(module::CallValue value) {
  const bool are_apart = std::holds_alternative<std::vector<tensor::Flat>>(value);
  return c10::ivalue::Tuple::create(are_apart, module::tagged_value(std::move(value)));
}

Begun begun_of(module::Begun begun, bool is_rows) {
  if (begun.run != nullptr) {
    return {static_cast<std::int64_t>(Next::kRun), at::IValue(),
            c10::make_intrusive<EagerRun>(std::move(begun.run))};
  }
  if (!begun.value.has_value()) {
    return {static_cast<std::int64_t>(Next::kJustRun), at::IValue(), at::IValue()};
  }
  return {
      static_cast<std::int64_t>(Next::kReturn),
      is_rows ? rows_value(*std::move(begun.value)) : module::tagged_value(*std::move(begun.value)),
      at::IValue()};
}

// `watch`: None where a name stands for the module. The arguments are those of the schema.
// NOLINTNEXTLINE(readability-function-size)
Begun begin_call(const std::string& scope, const std::string& method, const at::IValue& input,
                 const std::string& key, std::int64_t params_grad_pattern,
                 const std::optional<WatchPtr>& watch, const std::string& class_name) {
  check_key(kLookupOrRun, key);
  return begun_of(module::begin_eager(parts_of(scope, method, watch, class_name),
                                      module::CallKeys::whole(key), input, params_grad_pattern),
                  /*is_rows=*/false);
}

// With one key per row, whose results may differ in shape where `longest` is -1. A value is that of
// value_of(). NOLINTNEXTLINE(readability-function-size)
Begun begin_rows_call(const std::string& scope, const std::string& method, const at::IValue& input,
                      const std::optional<c10::List<std::string>>& texts,
                      const std::optional<at::Tensor>& ids, std::int64_t params_grad_pattern,
                      const std::optional<WatchPtr>& watch, const std::string& class_name,
                      const std::optional<at::Tensor>& mask,
                      const std::optional<at::Tensor>& lengths, std::int64_t longest,
                      double pad_value, bool runs_whole, bool has_unseen_rows) {
  module::CallKeys keys = checked_keys(kLookupOrRun, texts, ids);
  module::CallParts parts = parts_of(scope, method, watch, class_name);
  parts.is_ragged = longest < 0;
  parts.padding = checked_padding(kLookupOrRun, keys.rows(),
                                  {mask, lengths, std::max<std::int64_t>(longest, 0), pad_value});
  parts.runs_whole = runs_whole;
  parts.has_unseen_rows = has_unseen_rows;
  return begun_of(
      module::begin_eager(std::move(parts), std::move(keys), input, params_grad_pattern),
      /*is_rows=*/true);
}

// A call that runs without the library, with one key or one for each row.
void bypass_call(const std::string& method, const std::string& key, const std::string& class_name,
                 const std::string& why) {
  check_key(kLookupOrRun, key);
  module::refuse_call(parts_of("", method, {}, class_name), 1, why);
}
void bypass_rows(const std::string& method, const c10::List<std::string>& texts,
                 const std::string& class_name, const std::string& why) {
  const module::CallKeys keys = checked_keys(kLookupOrRun, texts, {});
  module::refuse_call(parts_of("", method, {}, class_name), static_cast<std::int64_t>(keys.rows()),
                      why);
}
// A batch that cannot be cached by row.
void refuse_rows(const std::string& method, std::int64_t rows, const std::string& class_name,
                 const std::string& why) {
  module::refuse_call(parts_of("", method, {}, class_name), rows, why,
                      cache::Counter::kBypassedRows);
}

// The step to make now; None: there is no more. (0, rows) runs these rows of the input, or all of
// it where they are None. (1, row, rows, has_made_rows, exchanges_bits) is a check run: so many
// rows made from that row, and how. (2, row, length, kept, altered, is_left) runs the row once more
// at that length: `kept` are the padded tensors that are left as they are, as bits, `altered` the
// one that gets other numbers, or -1, and `is_left` whether rows are padded on the left. Static, as
// it is called for each run.
at::IValue next_step(const RunPtr& self) {
  const Step* const step = self->run->step();
  if (step == nullptr) return {};
  const auto kind = static_cast<std::int64_t>(step->kind);
  switch (step->kind) {
    case Step::Kind::kRun:
      self->run->start();
      return c10::ivalue::Tuple::create(kind,
                                        step->is_whole_input ? at::IValue() : numbers(step->rows));
    case Step::Kind::kCheck:
      return c10::ivalue::Tuple::create(
          std::vector<at::IValue>{kind, step->check.row, step->check.rows,
                                  step->check.has_made_rows(), step->check.exchanges_bits});
    case Step::Kind::kTrial: break;
  }
  const auto part = self->run->parts().padding->true_part;
  return c10::ivalue::Tuple::create(std::vector<at::IValue>{
      kind, step->trial.row, step->trial.length, static_cast<std::int64_t>(step->trial.kept),
      step->trial.altered, part == tensor::TruePart::kLast});
}

// Ends a check or a trial. `output`: None where the module raised, or the input could not be made.
void finish_check(const RunPtr& self, const at::IValue& output, bool has_raised) {
  std::optional<tensor::Flat> checked;
  if (!has_raised) checked = tensor::flatten_tagged(output);
  self->run->finish(std::move(checked));
}

// As rows_value(). None: the output of the last run is returned as it is.
at::IValue value_of(const RunPtr& self) {
  auto value = self->run->value();
  return value.has_value() ? rows_value(*std::move(value)) : at::IValue();
}

// The address of the object, for the compiled part of the Python package (compiled_part.h).
std::int64_t address_of_watch(const WatchPtr& watch) {
  return reinterpret_cast<std::intptr_t>(watch.get());
}

// Whether the scope is to be given a manifest, for what rule the result was not kept, the warning.
using Outcome = std::tuple<bool, std::string, std::string>;

Outcome outcome_of(const RunPtr& self) {
  const module::Run& run = *self->run;
  const module::Outcome& found = run.outcome();
  const bool lacks = found.has_stored && module::lacks_manifest(run.parts());
  return {lacks, found.refused_for, found.refusal};
}

module::RunFacts facts_of(const std::string& impure_because, std::int64_t requiring_grad,
                          bool is_training, bool is_checkpointed) {
  module::RunFacts facts;
  facts.impure_because = impure_because;
  facts.requiring_grad = requiring_grad;
  facts.is_training = is_training;
  facts.is_checkpointed = is_checkpointed;
  return facts;
}

Outcome finish_eager_run(const RunPtr& self, const at::IValue& output,
                         const std::string& impure_because, std::int64_t requiring_grad,
                         bool is_training, bool is_checkpointed) {
  self->run->finish(tensor::flatten_tagged(output),
                    facts_of(impure_because, requiring_grad, is_training, is_checkpointed));
  return outcome_of(self);
}

// Starts the run again, because the module was loaded since begin(), which is no part of the run.
// Its tensors have a watch, or it is scripted; neither is given if the caller named the scope.
void restart(const RunPtr& self, const std::optional<WatchPtr>& watch, const at::IValue& scripted) {
  module::Run& run = *self->run;
  if (watch.has_value()) run.set_weights((*watch)->tensors());
  if (scripted.isObject()) run.set_weights(weights_of_scripted(scripted, run.parts().method));
  run.start();
}

// Shares a run that the compiled part has.
RunPtr run_at(std::int64_t address) {
  TORCH_CHECK(address != 0, "modcache: this call has no run");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has no other way to hand a pointer over
  return RunPtr::unsafe_reclaim_from_nonowning(reinterpret_cast<EagerRun*>(address));
}

void abandon(const RunPtr& self) { self->run->abandon(); }

void put_manifest(const RunPtr& self, const std::string& class_name, const std::string& text) {
  module::put_manifest(self->run->parts(), class_name, text);
}

}  // namespace

void register_eager(torch::Library& m) {
  m.class_<Watch>("Watch")
      .def(torch::init<>())
      .def_static("digest", &digest_of_watched)
      .def_static("refresh", &refresh_watch)
      .def("address", &address_of_watch)
      .def("digests", &Watch::digests);
  m.class_<EagerRun>("Run")
      .def_static("begin", &begin_call)
      .def_static("begin_rows", &begin_rows_call)
      .def_static("bypass", &bypass_call)
      .def_static("bypass_rows", &bypass_rows)
      .def_static("refuse_rows", &refuse_rows)
      .def_static("at", &run_at)
      .def_static("take_result", &take_result)
      .def_static("library_calls_address", &library_calls_address)
      .def_static("next_step", &next_step)
      .def("restart", &restart)
      .def("finish", &finish_eager_run)
      .def("finish_check", &finish_check)
      .def("value", &value_of)
      .def("outcome", &outcome_of)
      .def("abandon", &abandon)
      .def("put_manifest", &put_manifest);
  define(m, "_stepped(Tensor[] tensors) -> ()", &module::note_optimizer_step);
  define(m,
         "_one_row_of_length(Tensor tensor, int row, int longest, int length, bool is_left) "
         "-> Tensor",
         [](const at::Tensor& tensor, std::int64_t row, std::int64_t longest, std::int64_t length,
            bool is_left) {
           const auto part = is_left ? tensor::TruePart::kLast : tensor::TruePart::kFirst;
           return tensor::one_row_of_length(tensor, row, longest, length, part);
         });
  define(m, "_made_rows(Tensor rows, bool exchanges_bits) -> Tensor", &module::made_rows);
  define(m, "_select_rows(Tensor tensor, int[] rows) -> Tensor",
         [](const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
           return tensor::select_rows(tensor, rows);
         });
}

}  // namespace modcache::ops
