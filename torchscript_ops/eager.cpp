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
#include "module/watch/optimizer_steps.h"
#include "module/watch/watch.h"
#include "needs_torchscript.h"
#include "registration.h"
#include "tensor/row_padding.h"
#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::ops {
namespace {

using module::RowsRun;
using module::Run;
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
  if (watch.has_value()) parts.weights = (*watch)->contents();
  return parts;
}

template <typename RunPtr>
at::IValue value_or_none(RunPtr run) {
  return run.defined() ? at::IValue(std::move(run)) : at::IValue();
}

// The answer of module::Next, the value if it is to be returned, and the run if there is to be one.
using Begun = std::tuple<std::int64_t, at::IValue, at::IValue>;

// `watch`: None where a name stands for the module. The arguments are those of the schema.
// NOLINTNEXTLINE(readability-function-size)
Begun begin_call(const std::string& scope, const std::string& method, const at::IValue& input,
                 const std::string& key, std::int64_t params_grad_pattern,
                 const std::optional<WatchPtr>& watch, const std::string& class_name) {
  check_key(kLookupOrRun, key);
  module::Begun begun = module::begin_eager(parts_of(scope, method, watch, class_name), key, input,
                                            params_grad_pattern);
  return {static_cast<std::int64_t>(begun.next), std::move(begun.value),
          value_or_none(std::move(begun.run))};
}

at::IValue numbers(const std::vector<std::int64_t>& numbers) {
  return c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(numbers));
}

// Whether they are a list of rows that do not fit together, and they.
std::tuple<bool, at::IValue> rows_of_run(const c10::intrusive_ptr<RowsRun>& run) {
  module::TaggedRows rows = module::eager_rows(run->call);
  if (!rows.apart.has_value()) return {false, std::move(rows.together)};
  return {true, c10::ivalue::Tuple::create(*std::move(rows.apart))};
}

// With one key per row, whose results may differ in shape where `longest` is -1: the value is what
// rows() gives, or the numbers of the rows to run first. NOLINTNEXTLINE(readability-function-size)
Begun begin_rows_call(const std::string& scope, const std::string& method, const at::IValue& input,
                      const std::optional<c10::List<std::string>>& texts,
                      const std::optional<at::Tensor>& ids, std::int64_t params_grad_pattern,
                      const std::optional<WatchPtr>& watch, const std::string& class_name,
                      const std::optional<at::Tensor>& mask,
                      const std::optional<at::Tensor>& lengths, std::int64_t longest,
                      double pad_value, bool runs_whole, bool has_unseen_rows) {
  module::BatchKeys keys = checked_keys(kLookupOrRun, texts, ids);
  module::CallParts parts = parts_of(scope, method, watch, class_name);
  parts.is_ragged = longest < 0;
  parts.padding = checked_padding(kLookupOrRun, keys.rows(),
                                  {mask, lengths, std::max<std::int64_t>(longest, 0), pad_value});
  parts.runs_whole = runs_whole;
  parts.has_unseen_rows = has_unseen_rows;
  module::RowsBegun begun =
      module::begin_eager_rows(std::move(parts), std::move(keys), input, params_grad_pattern);
  const auto next = static_cast<std::int64_t>(begun.next);
  if (begun.next != module::Next::kReturn) {
    return {next, numbers(begun.rows), value_or_none(std::move(begun.run))};
  }
  auto [is_apart, rows] = rows_of_run(begun.run);
  return {next, c10::ivalue::Tuple::create(is_apart, std::move(rows)), at::IValue()};
}

// A call that runs without the library, with one key or one for each row.
void bypass_call(const std::string& method, const std::string& key, const std::string& class_name,
                 const std::string& why) {
  check_key(kLookupOrRun, key);
  module::bypass(parts_of("", method, {}, class_name), 1, why);
}
void bypass_rows(const std::string& method, const c10::List<std::string>& texts,
                 const std::string& class_name, const std::string& why) {
  const module::BatchKeys keys = checked_keys(kLookupOrRun, texts, {});
  module::bypass(parts_of("", method, {}, class_name), static_cast<std::int64_t>(keys.rows()), why);
}
// A batch that cannot be cached by row.
void refuse_rows(const std::string& method, std::int64_t rows, const std::string& class_name,
                 const std::string& why) {
  module::bypass(parts_of("", method, {}, class_name), rows, why, cache::Counter::kBypassedRows);
}

// The numbers of the rows to run next; None when there are no more. Static, as it is called at each
// run.
at::IValue next_rows(const c10::intrusive_ptr<RowsRun>& run) {
  const auto rows = run->call.next_rows();
  if (!rows.has_value()) return {};
  run->call.begin_run();
  return numbers(*rows);
}

// The row that a check run is made from, the number of its rows, and whether the others are made
// from that row, and how. None: there is no check run. Static like next_rows().
at::IValue next_check(const c10::intrusive_ptr<RowsRun>& run) {
  const auto check = run->call.next_check();
  if (!check.has_value()) return {};
  return c10::ivalue::Tuple::create(check->row, check->rows, check->has_made_rows(),
                                    check->exchanges_bits);
}

// `output`: None where the module raised, or the input could not be made.
void finish_check(const c10::intrusive_ptr<RowsRun>& run, const at::IValue& output,
                  bool has_raised) {
  std::optional<tensor::Flat> checked;
  if (!has_raised) checked = tensor::flatten_tagged(output);
  run->call.finish_check(checked);
}

// The row that is to be run once more, the length of its input, the padded tensors that are left as
// they are, as bits, the one that gets other numbers, or -1, and whether rows are padded on the
// left. None: there is no such row.
at::IValue next_trial(const c10::intrusive_ptr<RowsRun>& run) {
  const auto trial = run->call.next_trial();
  if (!trial.has_value()) return {};
  const bool is_left = run->call.parts().padding->true_part == tensor::TruePart::kLast;
  return c10::ivalue::Tuple::create(
      trial->row, trial->length, static_cast<std::int64_t>(trial->kept), trial->altered, is_left);
}

// `output`: None where the module raised.
void finish_trial(const c10::intrusive_ptr<RowsRun>& run, const at::IValue& output,
                  bool has_raised) {
  std::optional<tensor::Flat> tried;
  if (!has_raised) tried = tensor::flatten_tagged(output);
  run->call.finish_trial(tried);
}

// The address of the object, for the compiled part of the Python package (compiled_part.h).
std::int64_t address_of_watch(const WatchPtr& watch) {
  return reinterpret_cast<std::intptr_t>(watch.get());
}

// Whether the scope is to be given a manifest, for what rule the result was not kept, the warning.
using Outcome = std::tuple<bool, std::string, std::string>;

template <typename AnyRun>
Outcome outcome_of(const c10::intrusive_ptr<AnyRun>& run) {
  const module::Outcome& found = run->call.outcome();
  const bool lacks = found.has_stored && module::lacks_manifest(run->call.parts().scope);
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

template <typename AnyRun>
Outcome finish_run_of(const c10::intrusive_ptr<AnyRun>& run, const at::IValue& output,
                      const std::string& impure_because, std::int64_t requiring_grad,
                      bool is_training, bool is_checkpointed) {
  run->call.finish_run(tensor::flatten_tagged(output),
                       facts_of(impure_because, requiring_grad, is_training, is_checkpointed));
  return outcome_of(run);
}

// Starts the run again, because the module was loaded since begin(), which is no part of the run.
// Its tensors have a watch, or it is scripted; neither is given if the caller named the scope.
template <typename AnyRun>
void restart(const c10::intrusive_ptr<AnyRun>& run, const std::optional<WatchPtr>& watch,
             const at::IValue& scripted) {
  auto& call = run->call;
  if (watch.has_value()) call.note_weights((*watch)->contents());
  if (scripted.isObject()) {
    call.note_weights(weights_of_scripted(scripted, call.parts().method));
  }
  call.begin_run();
}

// Shares a run that the compiled part has.
c10::intrusive_ptr<Run> run_at(std::int64_t address) {
  TORCH_CHECK(address != 0, "modcache: this call has no run");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has no other way to hand a pointer over
  return c10::intrusive_ptr<Run>::unsafe_reclaim_from_nonowning(reinterpret_cast<Run*>(address));
}

template <typename AnyRun>
void abandon(const c10::intrusive_ptr<AnyRun>& run) {
  run->call.abandon();
}

template <typename AnyRun>
void put_manifest_of(const c10::intrusive_ptr<AnyRun>& run, const std::string& class_name,
                     const std::string& text) {
  const module::CallParts& parts = run->call.parts();
  module::put_manifest(parts.scope, class_name, parts.method, text);
}

template <typename AnyRun>
torch::class_<AnyRun> run_class(torch::Library& m, const std::string& name) {
  return m.class_<AnyRun>(name)
      .def("restart", &restart<AnyRun>)
      .def("finish", &finish_run_of<AnyRun>)
      .def("outcome", &outcome_of<AnyRun>)
      .def("abandon", &abandon<AnyRun>)
      .def("put_manifest", &put_manifest_of<AnyRun>);
}

}  // namespace

void register_eager(torch::Library& m) {
  m.class_<Watch>("Watch")
      .def(torch::init<>())
      .def_static("digest", &digest_of_watched)
      .def_static("refresh", &refresh_watch)
      .def("address", &address_of_watch)
      .def("digests", &Watch::digests);
  run_class<Run>(m, "Run")
      .def_static("begin", &begin_call)
      .def_static("bypass", &bypass_call)
      .def_static("at", &run_at)
      .def_static("take_result", &take_result)
      .def_static("library_calls_address", &library_calls_address);
  run_class<RowsRun>(m, "RowsRun")
      .def_static("begin", &begin_rows_call)
      .def_static("bypass", &bypass_rows)
      .def_static("refuse_rows", &refuse_rows)
      .def_static("next_rows", &next_rows)
      .def_static("next_check", &next_check)
      .def("finish_check", &finish_check)
      .def("next_trial", &next_trial)
      .def("finish_trial", &finish_trial)
      .def("gives_own_result",
           [](const c10::intrusive_ptr<RowsRun>& run) { return run->call.gives_own_result(); })
      .def("rows", &rows_of_run);
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
