// SPDX-License-Identifier: Apache-2.0
#include "module/eager.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "module/tensor_watch.h"

namespace modcache::module {
namespace {

struct Watched {
  std::shared_ptr<const TensorWatch> tensors;
  std::string digest;
  std::uint64_t refreshes = 0;            // asked for so far
  std::uint64_t refreshes_when_made = 0;  // of these, before `tensors` was made

  bool is_suspect() const { return refreshes != refreshes_when_made; }
};

struct Watches {
  Mutex mutex;
  std::int64_t next MODCACHE_GUARDED_BY(mutex) = 1;
  std::unordered_map<std::int64_t, Watched> by_number MODCACHE_GUARDED_BY(mutex);
};

// Never destroyed: Python forgets its watches while the process exits.
Watches& watches() {
  static Watches* const instance = [] {
    auto* created = new Watches;
    hold_across_fork(created->mutex);
    return created;
  }();
  return *instance;
}

Watched get(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  TORCH_CHECK(found != all.by_number.end(), "modcache: there is no watch ", watch);
  return found->second;
}

std::string digest_of(const TensorWatch& tensors) {
  Xxh3Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) hasher.add(tensors.digest(i).bytes());
  return hasher.digest().hex();
}

}  // namespace

std::int64_t new_watch() {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  all.by_number.emplace(all.next, Watched{});
  return all.next++;
}

void forget_watch(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  all.by_number.erase(watch);
}

void refresh_watch(std::int64_t watch) {
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  if (found != all.by_number.end()) ++found->second.refreshes;
}

std::string tensors_digest(std::int64_t watch, const std::vector<at::Tensor>& tensors) {
  const Watched known = get(watch);
  const bool may_lend = known.tensors != nullptr && !known.is_suspect();
  if (may_lend && known.tensors->compare(tensors) == TensorWatch::Change::kNone) {
    return known.digest;
  }
  for (const at::Tensor& tensor : tensors) {
    const char* why = why_not_hashable(tensor);
    TORCH_CHECK(why == nullptr, "modcache: a tensor that is ", why, " cannot be hashed");
  }
  auto fresh = std::make_shared<const TensorWatch>(tensors, TensorWatch::Hashing::kContents,
                                                   may_lend ? known.tensors.get() : nullptr);
  std::string digest = digest_of(*fresh);
  Watches& all = watches();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(watch);
  if (found != all.by_number.end()) {
    found->second.tensors = std::move(fresh);
    found->second.digest = digest;
    found->second.refreshes_when_made = known.refreshes;
  }
  return digest;
}

Begun begin_eager(CallParts parts, const at::IValue& input, std::int64_t params_grad_pattern) {
  auto& cache = cache::Cache::instance();
  if (!may_read(cache.mode())) {
    cache.counters().add(cache::Counter::kBypassedOff);
    return {};
  }
  parts.input = tensor::summarize_input(input);
  if (!parts.input.why_not_cacheable.empty()) {
    cache.counters().add(cache::Counter::kBypassedType);
    const std::string message = parts.class_name + "." + parts.method +
                                " is not cached: its input holds a tensor or value that is " +
                                parts.input.why_not_cacheable;
    TORCH_CHECK(!cache.session()->settings().strict, "modcache (strict=true): ", message);
    log_once(LogLevel::kWarning, "input:" + parts.class_name + ':' + parts.method, message);
    return {};
  }
  if (at::GradMode::is_enabled() && (params_grad_pattern != 0 || parts.input.any_requires_grad)) {
    parts.grad_pattern =
        parts.input.requires_grad_pattern * 31 + static_cast<std::uint64_t>(params_grad_pattern);
    if (parts.grad_pattern == 0) parts.grad_pattern = 1;
  }
  Begun begun;
  begun.run = c10::make_intrusive<Run>(std::move(parts));
  if (auto hit = begun.run->call.lookup()) {
    begun.next = Next::kReturn;
    begun.value = *std::move(hit);
    begun.run.reset();
    return begun;
  }
  begun.run->call.begin_run();
  begun.next = Next::kRunAndFinish;
  return begun;
}

}  // namespace modcache::module
