// SPDX-License-Identifier: Apache-2.0
#include "module/optimizer_steps.h"

#include <atomic>
#include <unordered_map>

#include "base/fork.h"
#include "base/mutex.h"

namespace modcache::module {
namespace {

// Beyond this many tensors the oldest steps are forgotten, and taken to have touched every one.
constexpr std::size_t kMostTensors = 1 << 16;

struct Steps {
  Mutex mutex;
  std::unordered_map<const c10::TensorImpl*, std::uint64_t> last MODCACHE_GUARDED_BY(mutex);
  std::uint64_t forgotten_up_to MODCACHE_GUARDED_BY(mutex) = 0;
  std::atomic<std::uint64_t> count{0};
};

// Never destroyed: threads of the host may call while the process exits.
Steps& steps() {
  static Steps* const instance = [] {
    auto* created = new Steps;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

}  // namespace

void note_optimizer_step(const std::vector<at::Tensor>& stepped) {
  Steps& all = steps();
  MutexLock lock(all.mutex);
  const std::uint64_t now = all.count.load(std::memory_order_relaxed) + 1;
  if (all.last.size() + stepped.size() > kMostTensors) {
    all.last.clear();
    all.forgotten_up_to = now - 1;
  }
  for (const at::Tensor& tensor : stepped) all.last[tensor.unsafeGetTensorImpl()] = now;
  all.count.store(now, std::memory_order_release);
}

std::uint64_t optimizer_steps() { return steps().count.load(std::memory_order_acquire); }

bool was_stepped_since(std::uint64_t before, const c10::TensorImpl* tensor) {
  Steps& all = steps();
  MutexLock lock(all.mutex);
  if (before < all.forgotten_up_to) return true;
  const auto found = all.last.find(tensor);
  return found != all.last.end() && found->second > before;
}

}  // namespace modcache::module
