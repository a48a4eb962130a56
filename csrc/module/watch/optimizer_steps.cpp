// SPDX-License-Identifier: Apache-2.0
#include "module/watch/optimizer_steps.h"

#include <atomic>
#include <unordered_map>

#include "base/process_wide.h"

namespace modcache::module {
namespace {

// With more tensors than this, all are forgotten, and each counts as stepped up to that time.
constexpr std::size_t kMostTensors = 1 << 16;

struct Steps : ProcessWide<Steps> {
  std::unordered_map<const c10::TensorImpl*, std::uint64_t> last MODCACHE_GUARDED_BY(mutex);
  std::uint64_t forgotten_up_to MODCACHE_GUARDED_BY(mutex) = 0;
  std::atomic<std::uint64_t> count{0};
};

}  // namespace

void note_optimizer_step(const std::vector<at::Tensor>& stepped) {
  Steps& all = Steps::instance();
  MutexLock lock(all.mutex);
  const std::uint64_t now = all.count.load(std::memory_order_relaxed) + 1;
  if (all.last.size() + stepped.size() > kMostTensors) {
    all.last.clear();
    all.forgotten_up_to = now - 1;
  }
  for (const at::Tensor& tensor : stepped) all.last[tensor.unsafeGetTensorImpl()] = now;
  all.count.store(now, std::memory_order_release);
}

std::uint64_t optimizer_steps() { return Steps::instance().count.load(std::memory_order_acquire); }

bool was_stepped_since(std::uint64_t before, const c10::TensorImpl* tensor) {
  Steps& all = Steps::instance();
  if (all.count.load(std::memory_order_acquire) == before) return false;
  MutexLock lock(all.mutex);
  if (before < all.forgotten_up_to) return true;
  const auto found = all.last.find(tensor);
  return found != all.last.end() && found->second > before;
}

}  // namespace modcache::module
