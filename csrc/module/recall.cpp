// SPDX-License-Identifier: Apache-2.0
#include "module/recall.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "module/class_names.h"
#include "module/declared.h"
#include "module/eager.h"
#include "module/identity.h"

namespace modcache::module {
namespace {

bool is_plain(cache::Mode mode) { return cache::may_read(mode) && !cache::always_runs(mode); }

// REQUIRES: parts but for the input are complete.
std::optional<at::Tensor> recall(CallParts parts, tensor::InputSummary input,
                                 const std::string& key) {
  parts.input = std::move(input);
  Call call(std::move(parts), key);
  const auto hit = call.recall();
  if (hit == nullptr) return std::nullopt;
  return hit->hand_out_tensor(call.parts().input.device);
}

// What `input` is to the cache; nothing when it needs a closer look.
std::optional<tensor::InputSummary> plain_input(const at::Tensor& input) {
  if (at::GradMode::is_enabled() && input.requires_grad()) return std::nullopt;
  tensor::InputSummary summary = tensor::summarize_input(input);
  if (!summary.why_not_cacheable.empty()) return std::nullopt;
  return summary;
}

}  // namespace

std::optional<at::Tensor> recall_eager(CallParts parts, const std::string& key,
                                       const at::Tensor& input, const EagerSight& sight) {
  if (!is_plain(cache::Cache::instance().mode())) return std::nullopt;
  const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (at::GradMode::is_enabled() &&
      std::any_of(sight.tensors.begin(), sight.tensors.end(), requires_grad)) {
    return std::nullopt;
  }
  auto summary = plain_input(input);
  if (!summary.has_value()) return std::nullopt;
  if (sight.watch != 0 && !still_has_digest(sight.watch, sight.tensors, sight.weights)) {
    return std::nullopt;
  }
  return recall(std::move(parts), *std::move(summary), key);
}

namespace {

using WeakObject = c10::weak_intrusive_ptr<c10::ivalue::Object>;

struct Noted {
  Mutex mutex;
  std::int64_t next MODCACHE_GUARDED_BY(mutex) = 1;
  std::unordered_map<std::int64_t, WeakObject> by_number MODCACHE_GUARDED_BY(mutex);
};

// Never destroyed: Python forgets its modules while the process exits.
Noted& noted() {
  static Noted* const instance = [] {
    auto* created = new Noted;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

ObjectPtr noted_module(std::int64_t number) {
  Noted& all = noted();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(number);
  return found == all.by_number.end() ? ObjectPtr() : found->second.lock();
}

bool declares_tensor(const c10::ClassType& type, const std::string& method) {
  const c10::TypePtr declared = declared_type(type, method);
  return declared == nullptr || declared->kind() == c10::TypeKind::TensorType ||
         declared->kind() == c10::TypeKind::AnyType;
}

}  // namespace

std::int64_t note_scripted(const at::IValue& module) {
  TORCH_CHECK(module.isObject(), "modcache: a TorchScript module is expected, got ",
              module.tagKind());
  Noted& all = noted();
  MutexLock lock(all.mutex);
  all.by_number.emplace(all.next, WeakObject(module.toObject()));
  return all.next++;
}

void forget_scripted(std::int64_t number) {
  Noted& all = noted();
  MutexLock lock(all.mutex);
  all.by_number.erase(number);
}

std::optional<at::Tensor> recall_scripted(std::int64_t number, CallParts parts,
                                          const std::string& key, const at::Tensor& input) {
  if (!is_plain(cache::Cache::instance().mode())) return std::nullopt;
  const ObjectPtr module = noted_module(number);
  if (!module || module->type()->findMethod(parts.method) == nullptr) return std::nullopt;
  if (!declares_tensor(*module->type(), parts.method)) return std::nullopt;
  auto summary = plain_input(input);
  if (!summary.has_value()) return std::nullopt;
  const auto identity = identity_of(module, parts.method);
  if (at::GradMode::is_enabled() && identity->requiring_grad(module).pattern != 0) {
    return std::nullopt;
  }
  if (parts.scope.empty()) parts.scope = identity->fingerprint(module).text;
  if (parts.scope.empty()) return std::nullopt;
  return recall(std::move(parts), *std::move(summary), key);
}

}  // namespace modcache::module
