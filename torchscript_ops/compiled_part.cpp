// SPDX-License-Identifier: Apache-2.0
#include "compiled_part.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "module/call/fast_path.h"
#include "module/call/manifest.h"
#include "module/call/module_run.h"
#include "module/eager/eager.h"
#include "module/watch/watch.h"
#include "registration.h"
#include "tensor/input.h"
#include "tensor/torch_version.h"
#include "tensor/tree.h"
#if MODCACHE_WITH_TORCHSCRIPT
#include "module/scripted/scripted.h"
#endif

namespace modcache::ops {
namespace {

using TensorPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Tensors that somebody else keeps alive, without counting a reference to any of them.
class BorrowedTensors {
 public:
  BorrowedTensors(void* const* impls, std::size_t count) {
    tensors_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      tensors_.emplace_back(TensorPtr::reclaim(static_cast<c10::TensorImpl*>(impls[i])));
    }
  }
  ~BorrowedTensors() {
    for (at::Tensor& tensor : tensors_) (void)tensor.unsafeReleaseTensorImpl();
  }
  BorrowedTensors(const BorrowedTensors&) = delete;
  BorrowedTensors& operator=(const BorrowedTensors&) = delete;

  const std::vector<at::Tensor>& all() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

std::string_view view(const Text& text) { return {text.data, text.size_bytes}; }

// Nothing for keys that are not one non-empty text or one number for each row.
std::optional<module::BatchKeys> keys_of(const PlainCall& call) {
  if (call.ids != nullptr) return module::BatchKeys::of_ids(call.ids, call.key_count);
  if (call.id_tensor != nullptr) {
    const BorrowedTensors borrowed(&call.id_tensor, 1);
    const at::Tensor& ids = borrowed.all().front();
    const bool is_plain = ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_cpu() &&
                          ids.is_contiguous() && !ids.is_conj() && !ids.is_neg();
    if (!is_plain || ids.key_set().has_any(tensor::transform_keys())) return std::nullopt;
    return module::BatchKeys::of_ids(
        reinterpret_cast<const std::int64_t*>(tensor::const_bytes(ids)),
        static_cast<std::size_t>(ids.numel()));
  }
  std::vector<std::string_view> texts;
  texts.reserve(call.key_count);
  for (std::size_t i = 0; i < call.key_count; ++i) {
    if (call.texts[i].size_bytes == 0) return std::nullopt;
    texts.push_back(view(call.texts[i]));
  }
  return module::BatchKeys(texts);
}

// A tuple of one tensor is that tensor.
at::IValue input_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors.front();
  return c10::ivalue::Tuple::create(std::vector<at::IValue>(tensors.begin(), tensors.end()));
}

// Nothing where a tensor has not one row for each key, or a key is empty.
std::optional<std::int64_t> rows_of(const PlainCall& call, const std::vector<at::Tensor>& inputs) {
  for (std::size_t i = 0; call.texts != nullptr && i < call.key_count; ++i) {
    if (call.texts[i].size_bytes == 0) return std::nullopt;
  }
  if (!call.is_rows) return 1;
  auto count = static_cast<std::int64_t>(call.key_count);
  if (call.id_tensor != nullptr) {
    const auto keys = keys_of(call);
    if (!keys.has_value()) return std::nullopt;
    count = static_cast<std::int64_t>(keys->rows());
  }
  return tensor::have_rows(inputs, count) ? std::optional<std::int64_t>(count) : std::nullopt;
}

Answer bypass(const PlainCall& call, const std::vector<at::Tensor>& inputs) {
  const auto rows = rows_of(call, inputs);
  const bool is_counted = rows.has_value() && module::is_bypassed_by_mode(*rows);
  return is_counted ? Answer::kBypassed : Answer::kNothing;
}

// Asks `find` the question of `call`; in mode `off` counts the call if it `may_bypass`.
template <typename MayBypass, typename Find>
Answer answer(const PlainCall& call, void** found, MayBypass may_bypass, Find find) {
  try {
    const BorrowedTensors inputs(call.inputs, call.input_count);
    if (cache::Cache::instance().mode() == cache::Mode::kOff) {
      return may_bypass() ? bypass(call, inputs.all()) : Answer::kNothing;
    }
    const std::string scope(view(call.scope));
    const std::string method(view(call.method));
    const std::optional<module::BatchKeys> rows =
        call.is_rows ? keys_of(call) : std::optional<module::BatchKeys>();
    const std::string key(call.is_rows ? std::string_view() : view(call.texts[0]));
    if (call.is_rows ? !rows.has_value() : key.empty()) return Answer::kNothing;
    const at::IValue input = input_of(inputs.all());
    module::FastAnswer answer =
        find(module::FastCall{scope, method, input, key, rows.has_value() ? &*rows : nullptr});
    if (answer.is_bypassed) return Answer::kBypassed;
    if (!answer.value.has_value()) return Answer::kNothing;
    *found = answer.value->unsafeReleaseTensorImpl();
    return Answer::kFound;
  } catch (const std::exception&) {
    return Answer::kNothing;
  }
}

bool requires_grad(const Weights& weights) {
  return std::any_of(weights.tensors, weights.tensors + weights.count, [](void* tensor) {
    return static_cast<const c10::TensorImpl*>(tensor)->requires_grad();
  });
}

bool still_has(const void* watch, const Weights& weights, const Text& digest) {
  try {
    const BorrowedTensors tensors(weights.tensors, weights.count);
    return static_cast<const module::Watch*>(watch)->still_has(tensors.all(),
                                                               std::string(view(digest)));
  } catch (const std::exception&) {
    return false;
  }
}

// A call that was made, until Python takes its result.
struct MadeCall {
  at::IValue result;
  std::exception_ptr exception;
};
thread_local std::optional<MadeCall> made_call;

Answer begin_eager(const PlainCall& call, const Text& class_name, const void* watch, void** found) {
  try {
    const BorrowedTensors inputs(call.inputs, call.input_count);
    module::CallParts parts;
    parts.scope = view(call.scope);
    parts.method = view(call.method);
    parts.class_name = view(class_name);
    if (watch != nullptr) parts.weights = static_cast<const module::Watch*>(watch)->contents();
    module::Begun begun = module::begin_eager(std::move(parts), std::string(view(call.texts[0])),
                                              input_of(inputs.all()), /*params_grad_pattern=*/0);
    if (begun.next == module::Next::kJustRun) return Answer::kBypassed;
    if (begun.run.defined()) {
      *found = begun.run.release();
      return Answer::kBegun;
    }
    if (begun.value.isTensor()) {
      *found = std::move(begun.value).toTensor().unsafeReleaseTensorImpl();
      return Answer::kFound;
    }
    made_call = MadeCall{std::move(begun.value), nullptr};
    return Answer::kTagged;
  } catch (const std::exception&) {
    return Answer::kNothing;
  }
}

Answer find_eager(const PlainCall& call, void** found) {
  bool is_plain = false;
  const auto find = [&](const module::FastCall& question) -> module::FastAnswer {
    if (question.scope.empty()) return {};  // the mode was `off` just now
    const cache::Mode mode = cache::Cache::instance().mode();
    if (!module::fast_path_is_open(mode)) return {};
    auto input = module::plain_input(question);
    is_plain = input.has_value();
    if (!is_plain) return {};
    return module::find_on_fast_path(question, *std::move(input), mode);
  };
  const Answer answered = answer(
      call, found, [] { return true; }, find);
  return answered == Answer::kNothing && is_plain ? Answer::kMissing : answered;
}

module::Run& run_of(void* run) { return *static_cast<module::Run*>(run); }

Finished finish_run(void* run, void* output, const Facts& facts) {
  module::Call& call = run_of(run).call;
  try {
    const BorrowedTensors result(&output, 1);
    module::RunFacts known;
    known.impure_because = view(facts.impure_because);
    known.requiring_grad = facts.requiring_grad;
    known.is_training = facts.is_training;
    known.is_checkpointed = facts.is_checkpointed;
    call.finish_run(tensor::flatten_tagged(result.all().front()), known);
    const module::Outcome& outcome = call.outcome();
    const bool lacks = outcome.has_stored && module::lacks_manifest(call.parts().scope);
    return lacks || !outcome.refused_for.empty() ? Finished::kWithOutcome : Finished::kQuietly;
  } catch (...) {
    made_call = MadeCall{at::IValue(), std::current_exception()};
    return Finished::kRaised;
  }
}

void abandon_run(void* run) { run_of(run).call.abandon(); }
void drop_run(void* run) { c10::intrusive_ptr<module::Run>::reclaim(&run_of(run)).reset(); }

#if MODCACHE_WITH_TORCHSCRIPT
// Makes a call that is no plain hit. Calls with mistakes, which Python reports, get no answer.
Answer run_scripted(const PlainCall& call, const module::ScriptedModule& module, void** found) {
  const std::string key(view(call.texts[0]));
  const std::string scope(view(call.scope));
  const std::string method(view(call.method));
  const module::ObjectPtr object = module.object();
  if (key.empty() || !object || !module.has_method(method)) return Answer::kNothing;
  try {
    const BorrowedTensors inputs(call.inputs, call.input_count);
    const at::IValue input = input_of(inputs.all());
    const at::IValue self(object);
    module::ScriptedCall whole{self, input, scope, method, module::Want::kAny};
    whole.is_no_plain_hit = true;
    at::IValue result = module::lookup_or_run(whole, key);
    if (result.isTensor() && result.toTensor().defined()) {
      *found = std::move(result).toTensor().unsafeReleaseTensorImpl();
      return Answer::kFound;
    }
    made_call = MadeCall{std::move(result), nullptr};
  } catch (...) {  // that of the module, which is raised as it is
    made_call = MadeCall{at::IValue(), std::current_exception()};
  }
  return Answer::kMade;
}
#endif

Answer look_up_scripted(const PlainCall& call, const void* scripted_module, void** found) {
#if MODCACHE_WITH_TORCHSCRIPT
  const auto& module = *static_cast<const module::ScriptedModule*>(scripted_module);
  const Answer plain = answer(
      call, found, [&] { return module.has_method(std::string(view(call.method))); },
      [&](const module::FastCall& question) { return module.fast_path(question); });
  return plain == Answer::kNothing && !call.is_rows ? run_scripted(call, module, found) : plain;
#else
  (void)call, (void)scripted_module, (void)found;
  return Answer::kNothing;
#endif
}

bool is_plain_here() { return !tensor::is_mode_in_force(); }

bool is_off_here() {
  cache::Cache& cache = cache::Cache::instance();
  return cache::combine(cache.process_mode(), cache::thread_mode()) == cache::Mode::kOff;
}

bool has_hashed(const void* watch) {
  return static_cast<const module::Watch*>(watch)->contents() != nullptr;
}

void retain(void* tensor) {
  (void)TensorPtr::unsafe_reclaim_from_nonowning(static_cast<c10::TensorImpl*>(tensor)).release();
}
void release(void* tensor) { TensorPtr::reclaim(static_cast<c10::TensorImpl*>(tensor)).reset(); }

}  // namespace

std::int64_t library_calls_address() {
  static constexpr LibraryCalls kCalls{LibraryCalls::kVersion,
                                       is_plain_here,
                                       at::GradMode::is_enabled,
                                       is_off_here,
                                       has_hashed,
                                       requires_grad,
                                       still_has,
                                       retain,
                                       release,
                                       find_eager,
                                       begin_eager,
                                       finish_run,
                                       abandon_run,
                                       drop_run,
                                       look_up_scripted};
  return reinterpret_cast<std::intptr_t>(&kCalls);
}

at::IValue take_result() {
  std::optional<MadeCall> made = std::exchange(made_call, std::nullopt);
  TORCH_CHECK(made.has_value(), "modcache: no call was made in this thread");
  if (made->exception != nullptr) std::rethrow_exception(made->exception);
  return std::move(made->result);
}

}  // namespace modcache::ops
