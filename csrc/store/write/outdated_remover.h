// SPDX-License-Identifier: Apache-2.0
//
// OutdatedRemover: removes entries that were replaced by values which could not be kept. An entry
// that cannot be removed now is noted (outdated_entries.h), so that this process does not find it,
// and the thread that writes tries again. Thread-safe.
#pragma once

#include <vector>

#include "base/status.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/queue/outdated_entries.h"
#include "store/queue/write_queue.h"

namespace modcache::store {

class OutdatedRemover {
 public:
  // All of them must outlive it.
  OutdatedRemover(AttachedDirectory& attached, Committer& committer, WriteQueue& queue,
                  OutdatedEntries& outdated)
      : attached_(attached), committer_(committer), queue_(queue), outdated_(outdated) {}

  // Notes that the values which these puts replace are outdated, since the puts are not kept.
  // note() leaves the removal to remove_noted().
  void note(const std::vector<QueuedPutPtr>& not_kept);
  void remove(const std::vector<QueuedPutPtr>& not_kept);
  // The same for puts that were refused before they had a sequence, which is filled in here.
  void remove_refused(std::vector<OutdatedEntry> refused);
  void remove_noted();

 private:
  Status try_to_remove();
  Status remove_older(const OutdatedEntry& outdated) MODCACHE_REQUIRES(committer_.mutex());

  AttachedDirectory& attached_;
  Committer& committer_;
  WriteQueue& queue_;
  OutdatedEntries& outdated_;
};

}  // namespace modcache::store
