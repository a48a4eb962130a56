// SPDX-License-Identifier: Apache-2.0
//
// NodeHealth: which nodes of clusters failed a moment ago, for all backends of a process. Their
// keys are misses for kPause, so that a node that does not answer costs a process about one
// time-out for each of these. Thread-safe; usable in a forked child.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "base/mutex.h"
#include "base/process_wide.h"

namespace modcache::backends {

class NodeHealth : public ProcessWide<NodeHealth> {
 public:
  static constexpr std::chrono::milliseconds kPause{1'000};

  bool is_left_alone(const std::string& node) {
    MutexLock lock(mutex);
    const auto found = until_.find(node);
    return found != until_.end() && std::chrono::steady_clock::now() < found->second;
  }
  void note_failure(const std::string& node) {
    MutexLock lock(mutex);
    if (until_.size() > kMostNodes) until_.clear();
    until_[node] = std::chrono::steady_clock::now() + kPause;
  }
  void note_success(const std::string& node) {
    MutexLock lock(mutex);
    until_.erase(node);
  }

 private:
  static constexpr std::size_t kMostNodes = 10'000;

  std::map<std::string, std::chrono::steady_clock::time_point> until_ MODCACHE_GUARDED_BY(mutex);
};

}  // namespace modcache::backends
