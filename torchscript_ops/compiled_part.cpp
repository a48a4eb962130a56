// SPDX-License-Identifier: Apache-2.0
#include "compiled_part.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "module/call/fast_path.h"
#include "module/call/module_run.h"
#include "module/eager/eager_fast_path.h"
#include "module/watch/watch.h"
#include "registration.h"
#include "tensor/torch_version.h"
#if MODCACHE_WITH_TORCHSCRIPT
#include "module/scripted/scripted_fast_path.h"
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

bool bypass(const PlainCall& call) {
  try {
    if (!call.is_rows) return call.texts[0].size_bytes != 0 && module::is_bypassed_by_mode(1);
    const auto rows = keys_of(call);
    if (!rows.has_value()) return false;
    const BorrowedTensors input(&call.input, 1);
    const at::Tensor& tensor = input.all().front();
    const auto count = static_cast<std::int64_t>(rows->rows());
    return tensor.dim() > 0 && tensor.size(0) == count && module::is_bypassed_by_mode(count);
  } catch (const std::exception&) {
    return false;
  }
}

bool requires_grad(const void* tensor) {
  return static_cast<const c10::TensorImpl*>(tensor)->requires_grad();
}

// Asks `find` the question of `call`. Any error is no answer.
template <typename Find>
void* answer(const PlainCall& call, Find find) {
  try {
    const BorrowedTensors input(&call.input, 1);
    const std::string scope(view(call.scope));
    const std::string method(view(call.method));
    const std::optional<module::BatchKeys> rows =
        call.is_rows ? keys_of(call) : std::optional<module::BatchKeys>();
    const std::string key(call.is_rows ? std::string_view() : view(call.texts[0]));
    if (call.is_rows ? !rows.has_value() : key.empty()) return nullptr;
    const auto reach = call.only_memory ? module::Reach::kMemory : module::Reach::kAllTiers;
    std::optional<at::Tensor> found =
        find({scope, method, input.all().front(), key, rows.has_value() ? &*rows : nullptr, reach});
    return found.has_value() ? found->unsafeReleaseTensorImpl() : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void* find_eager(const PlainCall& call, const EagerModule& eager) {
  return answer(call, [&](const module::FastCall& question) {
    const BorrowedTensors tensors(eager.tensors, eager.tensor_count);
    const std::string weights(view(eager.weights));
    return module::eager_fast_path(
        question, {tensors.all(), static_cast<const module::Watch*>(eager.watch), weights});
  });
}

void* find_scripted(const PlainCall& call, const void* scripted_module) {
#if MODCACHE_WITH_TORCHSCRIPT
  return answer(call, [&](const module::FastCall& question) {
    return static_cast<const module::ScriptedModule*>(scripted_module)->fast_path(question);
  });
#else
  (void)call, (void)scripted_module;
  return nullptr;
#endif
}

void release(void* tensor) { TensorPtr::reclaim(static_cast<c10::TensorImpl*>(tensor)).reset(); }

}  // namespace

std::int64_t library_calls_address() {
  static constexpr LibraryCalls kCalls{LibraryCalls::kVersion,
                                       module::fast_path_is_open,
                                       at::GradMode::is_enabled,
                                       bypass,
                                       requires_grad,
                                       find_eager,
                                       find_scripted,
                                       release};
  return reinterpret_cast<std::intptr_t>(&kCalls);
}

}  // namespace modcache::ops
