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
#include "cache/cache.h"
#include "module/declared.h"
#include "module/eager.h"
#include "module/identity.h"
#include "tensor/input.h"
#include "tensor/input_sampler.h"
#include "tensor/whole_value.h"

namespace modcache::module {
namespace {

const tensor::WholeValue& value_of(const cache::Entry& entry) {
  return static_cast<const tensor::WholeValue&>(*entry.value);
}

// What Call::lookup() would find in memory, of a call in which nothing requires grad.
std::optional<at::Tensor> recall(const std::string& scope, const std::string& method,
                                 const tensor::InputSummary& input, const std::string& key) {
  const auto session = cache::Cache::instance().session();
  const auto context =
      cache::make_context({session->settings().name_space, scope, method, cache::Form::kWhole,
                           input.arguments, tensor::arithmetic_state()});
  const tensor::InputSampler sampler(input.tensors, tensor::Per::kCall);
  const cache::EntryPtr entry =
      session->recall({context, key, input.signature, &sampler, /*row=*/0},
                      [](const cache::Entry& found) { return value_of(found).is_lone_tensor(); });
  if (entry == nullptr) return std::nullopt;
  return value_of(*entry).hand_out_tensor(input.device);
}

// What `input` is to the cache; nothing when it needs a closer look.
std::optional<tensor::InputSummary> plain_input(const at::Tensor& input) {
  if (at::GradMode::is_enabled() && input.requires_grad()) return std::nullopt;
  tensor::InputSummary summary = tensor::summarize_input(input);
  if (!summary.why_not_cacheable.empty()) return std::nullopt;
  return summary;
}

}  // namespace

bool may_recall() {
  const cache::Mode mode = cache::Cache::instance().mode();
  return cache::may_read(mode) && !cache::always_runs(mode);
}

std::optional<at::Tensor> recall_eager(const RecallParts& parts, const EagerSight& sight) {
  if (!may_recall()) return std::nullopt;
  const auto requires_grad = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (at::GradMode::is_enabled() &&
      std::any_of(sight.tensors.begin(), sight.tensors.end(), requires_grad)) {
    return std::nullopt;
  }
  const auto summary = plain_input(parts.input);
  if (!summary.has_value()) return std::nullopt;
  if (sight.watch != 0 && !still_has_digest(sight.watch, sight.tensors, sight.weights)) {
    return std::nullopt;
  }
  return recall(parts.scope, parts.method, *summary, parts.key);
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

std::optional<at::Tensor> recall_scripted(std::int64_t number, const RecallParts& parts) {
  if (!may_recall()) return std::nullopt;
  const ObjectPtr module = noted_module(number);
  if (!module || module->type()->findMethod(parts.method) == nullptr) return std::nullopt;
  if (!declares_tensor(*module->type(), parts.method)) return std::nullopt;
  const auto summary = plain_input(parts.input);
  if (!summary.has_value()) return std::nullopt;
  const auto identity = identity_of(module, parts.method);
  if (at::GradMode::is_enabled() && identity->requiring_grad(module).pattern != 0) {
    return std::nullopt;
  }
  if (!parts.scope.empty()) return recall(parts.scope, parts.method, *summary, parts.key);
  const std::string fingerprint = identity->fingerprint(module).text;
  if (fingerprint.empty()) return std::nullopt;
  return recall(fingerprint, parts.method, *summary, parts.key);
}

}  // namespace modcache::module
