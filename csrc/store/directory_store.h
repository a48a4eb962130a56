// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: the Store (store.h). Locks are taken in this order, each for a short time:
// write_mutex_, the directory's lock, the mutex of an index; all others are leaves.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "store/found_entry.h"
#include "store/location_map.h"
#include "store/open_directory.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"
#include "store/store.h"
#include "store/write_queue.h"

namespace modcache::store {

class BatchLookup;

class DirectoryStore final : public Store {
 public:
  DirectoryStore(fs::FileSystem& file_system, StoreOptions options);
  ~DirectoryStore() override;

  // REQUIRES: called once, before anything else.
  Status start();

  Result<std::unique_ptr<FoundEntry>> find(const EntryId& id) override;
  FoundEntries find_all(const Context& context, const std::vector<std::string_view>& keys) override;
  bool is_current(const EntryId& id, Sequence sequence) override;
  std::vector<bool> are_current(const Context& context, const std::vector<std::string_view>& keys,
                                const std::vector<Sequence>& sequences) override;
  std::uint64_t removals() const override;
  Result<Sequence> put(Put put) override;
  Status put_all(const Context& context, const std::vector<RowPut>& puts,
                 std::vector<Sequence>& sequences) override;
  Status drop(const EntryId& id, Sequence sequence) override;
  Result<std::int64_t> clear(const ClearFilter& filter) override;
  Status flush() override;
  Result<Totals> totals() override;
  bool is_read_only() const override { return opened_.writer == nullptr; }
  bool is_attached() const override;

 private:
  using Clock = std::chrono::steady_clock;

  // Reading
  bool was_cleared(const QueuedPut& put);
  QueuedPutPtr find_queued(const EntryId& id);
  Result<StoredRecord> read_record_at(const Location& location, const EntryId& id);
  Result<std::unique_ptr<FoundEntry>> find_stored(const EntryId& id, const Digest128& address,
                                                  std::uint64_t removals);
  void take_from_index(const Context& context, const std::vector<std::string_view>& keys,
                       const std::vector<std::size_t>& missing, BatchLookup& batch);
  void take_again(const EntryId& id, std::size_t i, Location failed, Status failure,
                  BatchLookup& batch);
  // What the caller is told of a failure of the index. REQUIRES: no lock is held.
  Status as_index_failure(const Status& status) MODCACHE_EXCLUDES(write_mutex_);

  // Writing
  Status check_writable() const;
  std::uint64_t room_bytes(std::uint64_t wanted_bytes);
  std::vector<std::shared_ptr<QueuedPut>> within_budget(const std::vector<RowPut>& puts,
                                                        const std::vector<std::size_t>& rows);
  Status number(const Context& context, const std::vector<std::shared_ptr<QueuedPut>>& puts);
  std::shared_ptr<const Context> shared_context(const Context& context);
  void write_until_stopped();
  void write(std::vector<QueuedPutPtr> batch, int& attempts);
  Status append_and_commit(const std::vector<QueuedPutPtr>& batch);
  Status wait_until_safe(WriteQueue::Position position);
  Result<DirectoryLock> lock_directory() MODCACHE_REQUIRES(write_mutex_);
  Status drop_row(const EntryId& id, Sequence sequence);
  void checkpoint_if_larger(std::uint64_t wal_bytes) MODCACHE_REQUIRES(write_mutex_);
  void refresh_disk_bytes();

  // Clearing
  struct Doomed;
  Result<std::int64_t> clear_index(const ClearFilter& filter);
  Result<SegmentPlan> plan_clear(const Clear& clear, const std::vector<SegmentFacts>& facts,
                                 Doomed& doomed) MODCACHE_REQUIRES(write_mutex_);
  std::int64_t count_unknown(const std::vector<QueuedPutPtr>& puts);

  // Belonging
  bool check_attached();
  void detach_broken_database() MODCACHE_EXCLUDES(write_mutex_);

  const StoreOptions options_;
  const Directory directory_;
  OpenedDirectory opened_;
  SegmentReaders readers_;
  const std::shared_ptr<LocationMap> locations_ = std::make_shared<LocationMap>();
  WriteQueue queue_;
  std::atomic<bool> is_attached_{true};
  std::atomic<std::int64_t> attached_checked_ms_{0};
  std::atomic<std::uint64_t> disk_bytes_{0};
  std::atomic<std::int64_t> disk_bytes_known_ms_{0};

  Mutex write_mutex_;
  SegmentWriter segments_ MODCACHE_GUARDED_BY(write_mutex_);

  Mutex contexts_mutex_;
  std::unordered_map<Digest128, std::shared_ptr<const Context>, Digest128Hash> contexts_
      MODCACHE_GUARDED_BY(contexts_mutex_);

  std::thread writer_;
};

}  // namespace modcache::store
