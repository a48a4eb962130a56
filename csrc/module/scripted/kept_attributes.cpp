// SPDX-License-Identifier: Apache-2.0
#include "module/scripted/kept_attributes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>
#include <unordered_set>
#include <utility>

namespace modcache::module {
namespace {

at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

KeptAttributes::KeptAttributes(const ObjectPtr& module) : random_state_(random_state()) {
  std::unordered_set<const c10::ivalue::Object*> seen;
  std::vector<ObjectPtr> left{module};
  while (!left.empty()) {
    const ObjectPtr object = std::move(left.back());
    left.pop_back();
    if (!seen.insert(object.get()).second) continue;
    for (const at::IValue& value : object->slots()) {
      if (value.isObject()) left.push_back(value.toObject());
    }
    kept_.push_back({object, object->slots()});
  }
}

void KeptAttributes::restore() const {
  set_random_state(random_state_);
  for (const auto& [object, values] : kept_) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!object->getSlot(i).is(values[i])) object->setSlot(i, values[i]);
    }
  }
}

}  // namespace modcache::module
