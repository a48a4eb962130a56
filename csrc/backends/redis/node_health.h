// SPDX-License-Identifier: Apache-2.0
//
// NodeHealth: which nodes of clusters, and which of several hosts, failed a moment ago, for all
// backends of a process. A node is left alone for kFirstPause, and for twice as long each time that
// it fails again, up to kLongestPause; a success ends that. After a pause one caller tries it while
// the others go on leaving it alone, so that a node which does not answer costs a process about one
// time-out for each pause. Thread-safe; usable in a forked child.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "base/mutex.h"
#include "base/process_wide.h"

namespace modcache::backends {

class NodeHealth : public ProcessWide<NodeHealth> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{1'000};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  bool has_failed(const std::string& node) {
    MutexLock lock(mutex);
    return failed_.count(node) != 0;
  }
  bool is_left_alone(const std::string& node) {
    MutexLock lock(mutex);
    const auto found = failed_.find(node);
    return found != failed_.end() && Clock::now() < found->second.until;
  }
  // Whoever is told true tries the node, and notes how that ended.
  bool may_try(const std::string& node) {
    MutexLock lock(mutex);
    const auto found = failed_.find(node);
    if (found == failed_.end()) return true;
    Failed& failed = found->second;
    if (Clock::now() < failed.until) return false;
    failed.until = Clock::now() + failed.pause;
    failed.is_tried = true;
    return true;
  }
  // Threads that were waiting for the node when it failed note one failure together.
  void note_failure(const std::string& node) {
    MutexLock lock(mutex);
    if (failed_.size() > kMostNodes) failed_.clear();
    const auto now = Clock::now();
    const auto [found, is_new] = failed_.try_emplace(node);
    Failed& failed = found->second;
    if (!is_new && !failed.is_tried && now < failed.until) return;
    if (!is_new) failed.pause = std::min(failed.pause * 2, kLongestPause);
    failed.until = now + failed.pause;
    failed.is_tried = false;
  }
  void note_success(const std::string& node) {
    MutexLock lock(mutex);
    failed_.erase(node);
  }

 private:
  static constexpr std::size_t kMostNodes = 10'000;
  struct Failed {
    Clock::time_point until;
    std::chrono::milliseconds pause = kFirstPause;
    bool is_tried = false;
  };

  std::map<std::string, Failed> failed_ MODCACHE_GUARDED_BY(mutex);
};

}  // namespace modcache::backends
