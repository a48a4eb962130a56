// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: the Store (store.h). Locks are taken in this order, each for a short time:
// write_mutex_, the directory's lock, the mutex of an index; all others are leaves.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "policy/policy.h"
#include "store/found_entry.h"
#include "store/location_map.h"
#include "store/open_directory.h"
#include "store/outdated_entries.h"
#include "store/reclaim/dead_space_looks.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaim_plan.h"
#include "store/reclaim/victim.h"
#include "store/segment/segment_reader.h"
#include "store/segment/segment_writer.h"
#include "store/shared_index/index_map_builder.h"
#include "store/shared_index/shared_index.h"
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
  Result<Evicted> evict(std::uint64_t to_bytes) override;
  Status flush() override;
  Result<std::string> find_note(std::string_view about) override;
  Status keep_note(std::string_view about, std::string_view text) override;
  Status clear_notes() override;
  Result<Totals> totals() override;
  bool is_read_only() const override { return opened_.writer == nullptr; }
  bool has_ageing_entries() const override { return true; }
  bool is_attached() const override {
    return is_read_only() ? check_attached() : !is_known_detached();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // 0: they are not counted.
  std::uint64_t counted_removals() const;

  // Reading
  bool was_cleared(const QueuedPut& put);
  QueuedPutPtr find_queued(const EntryId& id);
  Result<StoredRecord> read_record_at(const Location& location, const EntryId& id);
  Result<std::unique_ptr<FoundEntry>> find_of_any_age(const EntryId& id);
  Result<std::unique_ptr<FoundEntry>> find_stored(const EntryId& id, const Digest128& address,
                                                  std::uint64_t removals);
  std::optional<Result<std::unique_ptr<FoundEntry>>> find_shared(const EntryId& id,
                                                                 const Digest128& address,
                                                                 std::uint64_t removals);
  bool is_still_there(const Digest128& address, std::uint64_t segment, std::uint64_t offset,
                      Sequence sequence) const;
  std::vector<std::size_t> take_shared(std::vector<std::size_t> missing, BatchLookup& batch);
  std::vector<std::size_t> take_current(const std::vector<Digest128>& addresses,
                                        const std::vector<std::size_t>& unknown,
                                        std::vector<Sequence>& current);
  void remember(const Digest128& address, std::uint64_t segment, const StoredRecord& record,
                std::uint64_t removals);
  void take_from_index(const Context& context, const std::vector<std::string_view>& keys,
                       const std::vector<std::size_t>& missing, BatchLookup& batch);
  void take_again(const EntryId& id, std::size_t i, Location failed, Status failure,
                  BatchLookup& batch);
  // What the caller is told of a failure of the index. REQUIRES: no lock is held.
  Status as_index_failure(const Status& status) MODCACHE_EXCLUDES(write_mutex_);

  // Writing
  Status check_writable() const;
  enum class Room { kNone, kFree, kOfOthers };  // kOfOthers: that leave for it
  std::vector<std::shared_ptr<QueuedPut>> within_budget(const Context& context,
                                                        const std::vector<RowPut>& puts,
                                                        std::vector<std::size_t>& rows);
  Room room_for(const Context& context, const RowPut& put, std::uint64_t size_bytes,
                std::uint64_t taken_bytes);
  bool has_one(const EntryId& id);
  static std::vector<OutdatedEntry> outdated_by(const std::vector<QueuedPutPtr>& puts);
  // What cannot be removed now is not found any more, and tried again by the thread that writes.
  void remove_outdated(std::vector<OutdatedEntry> outdated);
  void remove_outdated();
  void remove_refused(std::vector<OutdatedEntry> refused);
  Status try_to_remove_outdated();
  Status remove_older(const OutdatedEntry& outdated) MODCACHE_REQUIRES(write_mutex_);
  Status number(const Context& context, const std::vector<std::shared_ptr<QueuedPut>>& puts);
  std::shared_ptr<const Context> shared_context(const Context& context);
  void write_until_stopped();
  void leave_segment_if_asked();
  bool settle(std::vector<QueuedPutPtr>& batch);
  void write(std::vector<QueuedPutPtr> batch, int& attempts);
  void refuse_beyond_budget(std::vector<QueuedPutPtr>& batch);
  Status append_and_commit(const std::vector<QueuedPutPtr>& batch);
  Status commit_rows(const std::vector<QueuedPutPtr>& batch, const std::vector<RecordPlace>& places)
      MODCACHE_REQUIRES(write_mutex_);
  Status wait_until_safe(WriteQueue::Position position);
  Result<DirectoryLock> lock_directory() MODCACHE_REQUIRES(write_mutex_);
  Result<DirectoryLock> lock_directory(std::int64_t patience_ms) MODCACHE_REQUIRES(write_mutex_);
  // REQUIRES: the directory's lock is held.
  void tell_of_removals() MODCACHE_REQUIRES(write_mutex_);
  void look_for_untold_removals() MODCACHE_EXCLUDES(write_mutex_);
  // Where the row is removed, all are told. REQUIRES: the directory's lock is held.
  Status drop_in_index(const EntryId& id, Sequence sequence,
                       std::optional<std::uint64_t> with_tombstone) MODCACHE_REQUIRES(write_mutex_);
  Status drop_row(const EntryId& id, Sequence sequence);
  Status sync_log() MODCACHE_REQUIRES(write_mutex_);
  void checkpoint_if_larger(std::uint64_t wal_bytes) MODCACHE_REQUIRES(write_mutex_);

  // Policy. Sequence 0: it was not found.
  void note_lookup(const Digest128& address, Sequence sequence);
  void note_lookups(const std::vector<Digest128>& addresses, const FoundEntries& found);
  policy::Usage usage_of_new(const Digest128& address);
  bool admits(const Digest128& address);
  void tell_policy_sizes();
  std::optional<std::uint64_t> rank_that_stays(std::uint64_t wanted_bytes);
  bool is_spared(const Digest128& address, Sequence sequence, std::uint64_t rank,
                 policy::Usage& usage);

  // Reclaiming (directory_store_reclaim.cpp). A pass runs in the thread for it, or in evict().
  struct Pass;
  struct Settling;
  struct Asked {
    bool is_asked = false;
    bool may_evict = false;
    std::uint64_t room_bytes = 0;
  };
  enum class Sparing { kAllLive, kHighRanks, kNone };  // what a pass keeps
  void ask_for_room(std::uint64_t size_bytes, bool may_evict);
  void look_for_dead_space();
  bool is_exhausted() const;
  void wait_for_room(std::uint64_t size_bytes, bool may_evict, Clock::time_point deadline);
  Asked wait_until_asked(bool has_gone);
  void reclaim_until_stopped();
  void stop_reclaiming();
  void let_go_of_gone();
  // Whether what others write while it runs has to go as well.
  enum class Chase { kAsLargeAsItWas, kAsLargeAsItIs };
  Result<Evicted> reclaim(std::uint64_t to_bytes, bool may_evict, Chase chase);
  bool is_reached(Pass& pass) MODCACHE_REQUIRES(reclaim_mutex_);
  Status run(Pass& pass, Sparing sparing) MODCACHE_REQUIRES(reclaim_mutex_);
  std::uint64_t excess_bytes(Pass& pass) MODCACHE_REQUIRES(reclaim_mutex_);
  Result<std::vector<SegmentUse>> survey(Pass& pass, Sparing sparing)
      MODCACHE_REQUIRES(reclaim_mutex_);
  void measure_ranks(Pass& pass, Sparing sparing, std::map<std::uint64_t, SegmentUse>& uses)
      MODCACHE_REQUIRES(reclaim_mutex_);
  Status measure_rows(const Pass& pass, std::map<std::uint64_t, SegmentUse>& uses)
      MODCACHE_REQUIRES(reclaim_mutex_);
  Status empty(Pass& pass, Sparing sparing, std::uint64_t segment)
      MODCACHE_REQUIRES(reclaim_mutex_);
  Status judge(Pass& pass, Sparing sparing, Victim& victim,
               const std::vector<Victim::Record>& records, Settling& settling);
  Status settle(Pass& pass, Sparing sparing, Victim& victim,
                const std::vector<Victim::Record>& records);
  Status commit_settled(Pass& pass, const Victim& victim, const std::vector<MovedRow>& moved,
                        const std::vector<PlacedRow>& evicted,
                        const std::vector<std::uint64_t>& tombstones)
      MODCACHE_REQUIRES(write_mutex_);
  Status finish(Pass& pass, Victim& victim) MODCACHE_REQUIRES(reclaim_mutex_);
  Status forget_victim(Pass& pass, const Victim& victim) MODCACHE_REQUIRES(write_mutex_);
  Result<std::vector<std::uint64_t>> move_clears(const Victim& victim)
      MODCACHE_REQUIRES(write_mutex_);
  bool is_needed(const Victim::ClearRecord& clear, std::uint64_t victim);
  bool stays(const Pass& pass, Sparing sparing, const Victim::Record& record, policy::Usage& usage);
  std::int64_t expired_before_us() const;  // least of all where there is no bound

  // The shared index
  void prepare_index();
  void build_part_of_index();
  bool is_building_index() const { return builder_ != nullptr; }
  void commit_to_index(const std::vector<NewRow>& rows,
                       const std::vector<std::optional<Sequence>>& taken)
      MODCACHE_REQUIRES(write_mutex_);
  void clear_in_index(const Clear& clear, const RemovedRows& removed)
      MODCACHE_REQUIRES(write_mutex_);
  void undo_in_index(const Status& status) MODCACHE_REQUIRES(write_mutex_);

  // Clearing
  struct Doomed;
  Result<std::int64_t> clear_index(const ClearFilter& filter);
  Result<SegmentPlan> plan_clear(const Clear& clear, const std::vector<SegmentFacts>& facts,
                                 Doomed& doomed) MODCACHE_REQUIRES(write_mutex_);
  std::int64_t count_unknown(const std::vector<QueuedPutPtr>& puts);

  // Belonging
  bool is_known_detached() const;
  // Looks at the files where nobody did for a while.
  bool check_attached() const;
  void detach_broken_database() MODCACHE_EXCLUDES(write_mutex_);

  const StoreOptions options_;
  const Directory directory_;
  OpenedDirectory opened_;
  std::unique_ptr<SharedIndex> index_;
  SegmentReaders readers_;
  const std::shared_ptr<LocationMap> locations_ = std::make_shared<LocationMap>();
  const LocationMap::IsStillThere is_still_there_ =
      [this](const Digest128& address, std::uint64_t segment, std::uint64_t offset,
             Sequence sequence) { return is_still_there(address, segment, offset, sequence); };
  DiskBudget budget_;
  WriteQueue queue_;
  const std::uint64_t uncounted_removals_ = first_removals();
  fs::FileInfo given_;  // of the directory, as options_ names it
  mutable std::atomic<bool> is_attached_{true};
  mutable std::atomic<std::int64_t> attached_checked_ms_{0};
  std::unique_ptr<policy::Policy> policy_;
  std::atomic<std::uint64_t> seen_reclaims_{0};
  std::uint64_t seen_leave_requests_ = 0;  // of the thread that writes

  Mutex write_mutex_;
  SegmentWriter segments_ MODCACHE_GUARDED_BY(write_mutex_);
  // By this store.
  Sequence last_committed_ MODCACHE_GUARDED_BY(write_mutex_) = 0;
  // How long the log was when somebody read from it, so that it could not be emptied; 0: it could.
  std::uint64_t log_bytes_in_vain_ MODCACHE_GUARDED_BY(write_mutex_) = 0;

  std::atomic<std::uint64_t> failed_syncs_{0};
  Status failed_sync_ MODCACHE_GUARDED_BY(write_mutex_);  // the last

  Mutex contexts_mutex_;
  std::unordered_map<Digest128, std::shared_ptr<const Context>, Digest128Hash> contexts_
      MODCACHE_GUARDED_BY(contexts_mutex_);

  // One pass at a time; taken before all other locks, and by nobody who must not wait.
  Mutex reclaim_mutex_;
  Mutex asked_mutex_;
  CondVar asked_changed_;
  std::uint64_t room_asked_bytes_ MODCACHE_GUARDED_BY(asked_mutex_) = 0;
  bool may_evict_ MODCACHE_GUARDED_BY(asked_mutex_) = false;
  bool is_asked_ MODCACHE_GUARDED_BY(asked_mutex_) = false;
  std::uint64_t passes_ MODCACHE_GUARDED_BY(asked_mutex_) = 0;
  std::atomic<bool> is_reclaim_stopping_{false};
  DeadSpaceLooks dead_space_looks_{options_.max_age_us};
  std::atomic<std::int64_t> exhausted_until_ms_{0};
  // Of the thread that writes.
  std::unique_ptr<IndexMapBuilder> builder_;
  Clock::time_point next_build_;
  Clock::duration build_pause_{};

  OutdatedEntries outdated_{65'536};  // a few megabytes

  std::thread writer_;
  std::thread reclaimer_;
};

}  // namespace modcache::store
