// SPDX-License-Identifier: Apache-2.0
#include "module/call/current_cache.h"

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace modcache::module {
namespace {

// torch hands these on to the threads of torch.jit.fork.
constexpr std::string_view kInheritedName = "MODCACHE_CURRENT_CACHE";
constexpr c10::DebugInfoKind kInherited(&kInheritedName);

struct Inherited : c10::DebugInfoBase {
  explicit Inherited(cache::CachePtr of_thread) : cache(std::move(of_thread)) {}
  const cache::CachePtr cache;
  std::atomic<bool> has_ended{false};
};

struct State {
  ThreadCache own;
  std::shared_ptr<Inherited> published;
};
thread_local State state;

using DebugInfo = c10::ThreadLocalDebugInfo;

// An entry of somebody else in the thread's list, such as torch's profiler.
struct Other {
  c10::DebugInfoKind kind;
  std::shared_ptr<c10::DebugInfoBase> info;
};

// Takes the last entry off the list. Nothing: there is none, or it is ours or of an unknown kind.
std::optional<Other> pop_other() {
  using Kind = c10::DebugInfoKind;
  for (const Kind kind : {Kind::PROFILER_STATE, Kind::PRODUCER_INFO, Kind::MOBILE_RUNTIME_INFO,
                          Kind::INFERENCE_CONTEXT, Kind::PARAM_COMMS_INFO}) {
    if (DebugInfo::get(kind) == nullptr) continue;
    try {
      return Other{kind, DebugInfo::_pop(kind)};
    } catch (const std::exception&) {
      continue;  // something lies above it
    }
  }
  return std::nullopt;
}

// Changes the list below the entries of others, who expect theirs to be the last.
template <typename Change>
void below_others(Change change) {
  std::vector<Other> others;
  while (auto other = pop_other()) others.push_back(*std::move(other));
  change();
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    DebugInfo::_push(other->kind, std::move(other->info));
  }
}

void publish(const cache::CachePtr& cache) {
  below_others([&] {
    if (const auto before = std::exchange(state.published, nullptr)) {
      try {
        DebugInfo::_pop(kInherited);
      } catch (const std::exception&) {  // something of an unknown kind lies above it
        before->has_ended = true;
      }
    }
  });
  if (cache == nullptr) return;
  state.published = std::make_shared<Inherited>(cache);
  below_others([&] { DebugInfo::_push(kInherited, state.published); });
}

}  // namespace

ThreadCache set_thread_cache(ThreadCache cache) {
  ThreadCache before = std::exchange(state.own, std::move(cache));
  if (before.cache != state.own.cache) publish(state.own.cache);
  return before;
}

cache::CachePtr current_cache() {
  const ThreadCache& own = state.own;
  if (own.cache == nullptr) {
    const auto* const inherited =
        static_cast<const Inherited*>(c10::ThreadLocalDebugInfo::get(kInherited));
    const bool is_inherited = inherited != nullptr && !inherited->has_ended;
    return is_inherited ? inherited->cache : cache::default_cache();
  }
  TORCH_CHECK_VALUE(!own.is_of_several_tasks,
                    "modcache: asyncio tasks of this thread are inside `with` blocks of different "
                    "caches, so an operator that is called directly cannot tell which of them is "
                    "meant: call cache.lookup_or_run(model, ...) of the Cache itself");
  return own.cache;
}

}  // namespace modcache::module
