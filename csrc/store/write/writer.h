// SPDX-License-Identifier: Apache-2.0
//
// Writer: the thread that appends what is queued to a segment and commits it. Between two batches
// it does what else has to be done now and then: it lets go of segments, leaves its own when asked
// to, removes outdated entries and makes the table of the shared index.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "base/status.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/room_requests.h"
#include "store/segment/segment_writer.h"
#include "store/write/index_mirror.h"
#include "store/write/outdated_remover.h"

namespace modcache::store {

class Writer {
 public:
  // All of them must outlive it.
  Writer(AttachedDirectory& attached, Committer& committer, IndexMirror& mirror, WriteQueue& queue,
         OutdatedRemover& remover, RoomRequests& requests)
      : attached_(attached),
        committer_(committer),
        mirror_(mirror),
        queue_(queue),
        remover_(remover),
        budget_(requests.budget()),
        requests_(requests) {}
  // Stops the queue, and commits what is in it.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Starts the thread, which may throw. REQUIRES: the directory is not only read.
  void start();

  // Returns when all that was queued up to `position` survives power loss. From any thread.
  Status wait_until_safe(WriteQueue::Position position);

 private:
  using Clock = WriteQueue::Clock;

  void write_until_stopped();
  void leave_segment_if_asked();
  void write(std::vector<QueuedPutPtr> batch);
  void refuse_beyond_budget(std::vector<QueuedPutPtr>& batch);
  Status append_and_commit(const std::vector<QueuedPutPtr>& batch);
  bool was_cleared(const QueuedPut& put);
  Status commit_rows(const std::vector<QueuedPutPtr>& batch, const std::vector<RecordPlace>& places)
      MODCACHE_REQUIRES(committer_.mutex());

  AttachedDirectory& attached_;
  Committer& committer_;
  IndexMirror& mirror_;
  WriteQueue& queue_;
  OutdatedRemover& remover_;
  DiskBudget& budget_;
  RoomRequests& requests_;
  // The thread's own.
  std::uint64_t seen_leave_requests_ = 0;
  int attempts_ = 0;  // at the batch that is written
  std::thread thread_;
};

}  // namespace modcache::store
