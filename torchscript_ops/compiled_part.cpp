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
#include "module/call/current_cache.h"
#include "module/call/manifest.h"
#include "module/call/rules.h"
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
std::optional<module::CallKeys> keys_of(const PlainCall& call) {
  if (call.ids != nullptr) return module::CallKeys::of_ids(call.ids, call.key_count);
  if (call.id_tensor != nullptr) {
    const BorrowedTensors borrowed(&call.id_tensor, 1);
    const at::Tensor& ids = borrowed.all().front();
    const bool is_plain = ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_cpu() &&
                          ids.is_contiguous() && !ids.is_conj() && !ids.is_neg();
    if (!is_plain || ids.key_set().has_any(tensor::transform_keys())) return std::nullopt;
    return module::CallKeys::of_ids(reinterpret_cast<const std::int64_t*>(tensor::const_bytes(ids)),
                                    static_cast<std::size_t>(ids.numel()));
  }
  std::vector<std::string_view> texts;
  texts.reserve(call.key_count);
  for (std::size_t i = 0; i < call.key_count; ++i) {
    if (call.texts[i].size_bytes == 0) return std::nullopt;
    texts.push_back(view(call.texts[i]));
  }
  return module::CallKeys(texts);
}

// The tensor behind a Python object, with a reference of its own.
at::Tensor tensor_of(void* impl) {
  return at::Tensor(TensorPtr::unsafe_reclaim_from_nonowning(static_cast<c10::TensorImpl*>(impl)));
}

// A tuple of one tensor is that tensor.
at::IValue input_of(const PlainCall& call) {
  if (call.input_count == 1) return tensor_of(call.inputs[0]);
  std::vector<at::IValue> items;
  items.reserve(call.input_count);
  for (std::size_t i = 0; i < call.input_count; ++i) items.emplace_back(tensor_of(call.inputs[i]));
  return c10::ivalue::Tuple::create(std::move(items));
}

bool have_rows(const PlainCall& call, std::int64_t rows) {
  const BorrowedTensors inputs(call.inputs, call.input_count);
  return tensor::have_rows(inputs.all(), rows);
}

// Returns nullopt where a tensor does not have one row for each key, or a key is empty.
std::optional<std::int64_t> rows_of(const PlainCall& call) {
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
  return have_rows(call, count) ? std::optional<std::int64_t>(count) : std::nullopt;
}

bool bypass(const PlainCall& call) {
  try {
    const module::CallParts parts;
    const auto rows = rows_of(call);
    return rows.has_value() && module::is_bypassed_by_mode(parts, *rows);
  } catch (const std::exception&) {
    return false;
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

// The keys of a call; nullopt where they are mistakes, which the ordinary path reports.
std::optional<module::CallKeys> call_keys_of(const PlainCall& call) {
  if (call.is_rows) return keys_of(call);
  const std::string_view key = view(call.texts[0]);
  if (key.empty()) return std::nullopt;
  return module::CallKeys::whole(key);
}

// Returns whether all of the input goes row by row, and nothing else might.
bool has_rows(const tensor::InputSummary& input, const module::CallKeys& keys) {
  const auto rows = static_cast<std::int64_t>(keys.rows());
  return keys.is_whole() || (rows > 0 && !input.tensors.empty() && input.list_sizes.empty() &&
                             tensor::have_rows(input.tensors, rows));
}

Answer begin_eager(const PlainCall& call, const Text& class_name, const void* watch, bool may_begin,
                   void** found) {
  try {
    module::CallParts parts;
    if (parts.mode == cache::Mode::kOff) {
      return bypass(call) ? Answer::kBypassed : Answer::kNothing;
    }
    parts.scope = view(call.scope);
    auto keys = call_keys_of(call);
    if (parts.scope.empty() || !keys.has_value()) return Answer::kNothing;
    parts.method = view(call.method);
    parts.class_name = view(class_name);
    if (watch != nullptr) parts.weights = static_cast<const module::Watch*>(watch)->tensors();
    parts.input = tensor::summarize_input(input_of(call), keys->per());
    const bool has_graph = at::GradMode::is_enabled() && parts.input.requiring_grad.count > 0;
    if (has_graph || !parts.input.why_not_cacheable.empty() || !has_rows(parts.input, *keys)) {
      return Answer::kNothing;
    }
    module::Call lookup(parts, *keys);
    module::Begun begun;
    if (may_begin) {
      begun = lookup.begin();
    } else {
      begun.value = lookup.find_stored();
      if (!begun.value.has_value()) return Answer::kNothing;
    }
    if (begun.run != nullptr) {
      begun.run->start();
      *found = c10::make_intrusive<module::EagerRun>(std::move(begun.run)).release();
      return Answer::kBegun;
    }
    if (!begun.value.has_value()) return Answer::kBypassed;
    if (auto* const lone = std::get_if<at::Tensor>(&*begun.value)) {
      *found = std::move(*lone).unsafeReleaseTensorImpl();
      return Answer::kFound;
    }
    const bool are_apart = std::holds_alternative<std::vector<tensor::Flat>>(*begun.value);
    made_call = MadeCall{module::tagged_value(*std::move(begun.value)), nullptr};
    return are_apart ? Answer::kApart : Answer::kTagged;
  } catch (const std::exception&) {
    return Answer::kNothing;
  }
}

module::EagerRun& run_of(void* run) { return *static_cast<module::EagerRun*>(run); }

Finished finish_run(void* run, void* output, const Facts& facts) {
  module::Run& call = *run_of(run).run;
  try {
    const BorrowedTensors result(&output, 1);
    module::RunFacts known;
    known.impure_because = view(facts.impure_because);
    known.requiring_grad = facts.requiring_grad;
    known.is_training = facts.is_training;
    known.is_checkpointed = facts.is_checkpointed;
    call.finish(tensor::flatten_tagged(result.all().front()), known);
    const module::Outcome& outcome = call.outcome();
    const bool lacks = outcome.has_stored && module::lacks_manifest(call.parts());
    return lacks || !outcome.refused_for.empty() ? Finished::kWithOutcome : Finished::kQuietly;
  } catch (...) {
    made_call = MadeCall{at::IValue(), std::current_exception()};
    return Finished::kRaised;
  }
}

void drop_run(void* run) { c10::intrusive_ptr<module::EagerRun>::reclaim(&run_of(run)).reset(); }

#if MODCACHE_WITH_TORCHSCRIPT
// Calls with mistakes, which Python reports, get no answer.
Answer run_scripted(const PlainCall& call, const module::ScriptedModule& module, void** found) {
  const std::string scope(view(call.scope));
  const std::string method(view(call.method));
  const module::ObjectPtr object = module.object();
  auto keys = call_keys_of(call);
  if (!keys.has_value() || !object || !module.has_method(method)) return Answer::kNothing;
  bool are_apart = false;
  try {
    if (!keys->is_whole() && !have_rows(call, static_cast<std::int64_t>(keys->rows()))) {
      return Answer::kNothing;
    }
    const at::IValue input = input_of(call);
    const at::IValue self(object);
    at::IValue result = module::lookup_or_run({self, input, scope, method, module::Want::kAny},
                                              *std::move(keys), &are_apart);
    if (result.isTensor() && result.toTensor().defined()) {
      *found = std::move(result).toTensor().unsafeReleaseTensorImpl();
      return Answer::kFound;
    }
    made_call = MadeCall{std::move(result), nullptr};
  } catch (...) {  // that of the module, which is raised as it is
    made_call = MadeCall{at::IValue(), std::current_exception()};
  }
  return are_apart ? Answer::kApart : Answer::kMade;
}
#endif

Answer look_up_scripted(const PlainCall& call, const void* scripted_module, void** found) {
#if MODCACHE_WITH_TORCHSCRIPT
  const auto& module = *static_cast<const module::ScriptedModule*>(scripted_module);
  try {
    if (module::current_cache()->mode() == cache::Mode::kOff) {
      const bool may_bypass = module.has_method(std::string(view(call.method)));
      return may_bypass && bypass(call) ? Answer::kBypassed : Answer::kNothing;
    }
    return run_scripted(call, module, found);
  } catch (const std::exception&) {
    return Answer::kNothing;
  }
#else
  (void)call, (void)scripted_module, (void)found;
  return Answer::kNothing;
#endif
}

bool is_plain_here() { return !tensor::is_mode_in_force(); }

bool is_off_here() {
  try {
    return cache::combine(module::current_cache()->process_mode(), cache::thread_mode()) ==
           cache::Mode::kOff;
  } catch (const std::exception&) {
    return false;
  }
}

bool has_hashed(const void* watch) {
  return static_cast<const module::Watch*>(watch)->tensors() != nullptr;
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
                                       bypass,
                                       has_hashed,
                                       requires_grad,
                                       still_has,
                                       retain,
                                       release,
                                       begin_eager,
                                       finish_run,
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
