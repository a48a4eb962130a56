// SPDX-License-Identifier: Apache-2.0
#include "module/identity/identity.h"

#include <ATen/core/class_type.h>
#include <ATen/core/jit_type.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/process_wide.h"

namespace modcache::module {

// A state of the module at one moment. It is immutable, so calls compare with it without a lock.
struct Identity::State {
  State(const ObjectPtr& module, std::shared_ptr<const Source> its_source,
        TensorWatch::Hashing hashing, std::uint64_t refreshes_before, const State* before)
      : source(std::move(its_source)),
        refreshes(refreshes_before),
        inventory(module, *source, hashing, before != nullptr ? &before->inventory : nullptr) {
    if (!inventory.is_hashed()) return;
    fingerprint = fingerprint_of(source->digest, inventory.digest());
  }

  bool is_complete() const {
    return inventory.is_hashed() || !inventory.why_not_hashable().empty();
  }

  std::shared_ptr<const Source> source;
  std::uint64_t refreshes;  // the number requested before anything was read
  Inventory inventory;
  std::string fingerprint;
};

Identity::Identity(const ObjectPtr& module, std::string method)
    : method_(std::move(method)),
      type_(module->type()),
      fork_registration_(hold_across_fork(mutex_)) {}

Identity::~Identity() { stop_holding_across_fork(fork_registration_); }

Identity::StatePtr Identity::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::shared_ptr<const Source> Identity::source_of(const ObjectPtr& module,
                                                  const State* before) const {
  if (before != nullptr && !before->source->has_interfaces) return before->source;
  return std::make_shared<const Source>(read_source(module, method_));
}

Identity::StatePtr Identity::renew(const ObjectPtr& module, TensorWatch::Hashing hashing) {
  const StatePtr before = state();
  const std::uint64_t refreshes = refreshes_.load(std::memory_order_acquire);
  const bool may_lend = before != nullptr && before->refreshes == refreshes;
  auto fresh = std::make_shared<const State>(module, source_of(module, before.get()), hashing,
                                             refreshes, may_lend ? before.get() : nullptr);
  MutexLock lock(mutex_);
  state_ = fresh;
  return fresh;
}

Identity::StatePtr Identity::current(const ObjectPtr& module, Inventory::Depth depth) const {
  StatePtr known = state();
  if (known == nullptr || known->refreshes != refreshes_.load(std::memory_order_acquire) ||
      known->inventory.compare(*module, depth).has_value()) {
    return nullptr;
  }
  return known;
}

Identity::StatePtr Identity::hashed(const ObjectPtr& module) {
  StatePtr state = current(module, Inventory::Depth::kSamples);
  if (state != nullptr && state->is_complete()) return state;
  return renew(module, TensorWatch::Hashing::kContents);
}

Identity::Fingerprint Identity::fingerprint(const ObjectPtr& module) {
  const StatePtr state = hashed(module);
  return {state->fingerprint, state->inventory.why_not_hashable(), state->inventory.tensors(),
          std::shared_ptr<const Inventory>(state, &state->inventory)};
}

std::optional<Identity::Pieces> Identity::pieces(const ObjectPtr& module) {
  const StatePtr state = hashed(module);
  if (!state->inventory.is_hashed()) return std::nullopt;
  return Pieces{state->source->functions, state->inventory.attribute_digests()};
}

Identity::Refusal Identity::refusal() const {
  MutexLock lock(mutex_);
  return refusal_;
}

void Identity::note_refusal(const std::string& cause, const std::string& message,
                            const std::string& scope) {
  MutexLock lock(mutex_);  // each in its place, which has the memory for it
  refusal_.cause = cause;
  refusal_.message = message;
  refusal_.scope = scope;
}

std::shared_ptr<const Inventory> Identity::observe(const ObjectPtr& module) {
  StatePtr known = current(module, Inventory::Depth::kIdentity);
  // Tensors that count no versions are hashed right before the run, and again after it.
  if (known != nullptr && !known->inventory.has_uncounted()) return {known, &known->inventory};
  const StatePtr before = state();
  if (before == nullptr) {
    known = renew(module, TensorWatch::Hashing::kUncounted);
  } else {
    // state_ keeps its digests, because the next fingerprint needs them.
    known =
        std::make_shared<const State>(module, source_of(module, before.get()),
                                      TensorWatch::Hashing::kUncounted, before->refreshes, nullptr);
  }
  return {known, &known->inventory};
}

tensor::RequiringGrad Identity::requiring_grad(const ObjectPtr& module) {
  StatePtr known = state();
  if (known == nullptr) known = renew(module, TensorWatch::Hashing::kNone);
  auto found = known->inventory.requiring_grad(*module);
  if (!found.has_value()) found = observe(module)->requiring_grad(*module);
  return found.value_or(tensor::RequiringGrad{});
}

std::optional<std::string> Identity::changed_since(const Inventory& before,
                                                   const ObjectPtr& module) {
  auto difference = before.compare(*module, Inventory::Depth::kSamples);
  return difference.has_value() ? difference : before.changed_uncounted();
}

bool Identity::gave_grad(std::uint64_t pattern) const {
  return pattern != 0 && grad_pattern_.load(std::memory_order_relaxed) == pattern;
}

void Identity::note_gave_grad(std::uint64_t pattern, bool gave) {
  if (gave) {
    grad_pattern_.store(pattern, std::memory_order_relaxed);
    // Gradients reach an optimizer, which may write weights without counting versions.
    refresh();
  } else if (gave_grad(pattern)) {
    grad_pattern_.store(0, std::memory_order_relaxed);
  }
}

namespace {

// Modules come and go. An Identity keeps none alive, and at most this many are remembered.
constexpr std::size_t kMostIdentities = 512;

struct Registry : ProcessWide<Registry> {
  std::unordered_map<const c10::ivalue::Object*,
                     std::unordered_map<std::string, std::shared_ptr<Identity>>>
      by_module MODCACHE_GUARDED_BY(mutex);
};

}  // namespace

std::shared_ptr<Identity> identity_of(const ObjectPtr& module, const std::string& method) {
  Registry& known = Registry::instance();
  {
    MutexLock lock(known.mutex);
    const auto methods = known.by_module.find(module.get());
    if (methods != known.by_module.end()) {
      const auto found = methods->second.find(method);
      // A new module may have the address of an earlier one.
      if (found != methods->second.end() && found->second->type_ == module->type()) {
        return found->second;
      }
    }
  }
  auto fresh = std::make_shared<Identity>(module, method);
  MutexLock lock(known.mutex);
  if (known.by_module.size() >= kMostIdentities) known.by_module.clear();
  auto& place = known.by_module[module.get()][method];
  if (place == nullptr || place->type_ != module->type()) place = fresh;
  return place;
}

void refresh_identities(const ObjectPtr& module) {
  Registry& known = Registry::instance();
  MutexLock lock(known.mutex);
  const auto methods = known.by_module.find(module.get());
  if (methods == known.by_module.end()) return;
  for (const auto& [method, identity] : methods->second) identity->refresh();
}

}  // namespace modcache::module
