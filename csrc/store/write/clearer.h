// SPDX-License-Identifier: Apache-2.0
//
// Clearer: Store::clear(). Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/clearing.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/room_requests.h"
#include "store/write/index_mirror.h"

namespace modcache::store {

class Clearer {
 public:
  // All of them must outlive it.
  Clearer(AttachedDirectory& attached, Committer& committer, IndexMirror& mirror, WriteQueue& queue,
          DiskBudget& budget, RoomRequests& requests)
      : attached_(attached),
        committer_(committer),
        mirror_(mirror),
        queue_(queue),
        budget_(budget),
        requests_(requests) {}

  // See store.h.
  Result<std::int64_t> clear(const ClearFilter& filter) MODCACHE_EXCLUDES(committer_.mutex());

 private:
  struct Doomed;
  Result<std::int64_t> clear_index(const ClearFilter& filter);
  Result<SegmentPlan> plan_segments(const Clear& clear, const std::vector<SegmentFacts>& facts,
                                    Doomed& doomed) MODCACHE_REQUIRES(committer_.mutex());
  std::int64_t count_unknown(const std::vector<QueuedPutPtr>& puts);

  AttachedDirectory& attached_;
  Committer& committer_;
  IndexMirror& mirror_;
  WriteQueue& queue_;
  DiskBudget& budget_;
  RoomRequests& requests_;
};

}  // namespace modcache::store
