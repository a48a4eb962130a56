// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: the Store (store.h) of a directory. It owns the parts, of which each has one job,
// and forwards calls to them.
//
// Locks are taken in this order, each for a short time: the reclaimer's pass, the committer's
// mutex, the directory's lock, the mutex of an index. All others are leaves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/entry/totals.h"
#include "store/found/found_entries.h"
#include "store/lookup/lookup.h"
#include "store/queue/outdated_entries.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/admission.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/reclaimer.h"
#include "store/recovery/open_directory.h"
#include "store/store.h"
#include "store/usage/usage_tracker.h"
#include "store/write/clearer.h"
#include "store/write/index_mirror.h"
#include "store/write/intake.h"
#include "store/write/outdated_remover.h"
#include "store/write/writer.h"

namespace modcache::store {

class DirectoryStore final : public Store {
 public:
  // `opened` is what open_directory() gave for the other two.
  DirectoryStore(const Directory& directory, StoreOptions options, OpenedDirectory opened);

  // REQUIRES: called once, before anything else.
  Status start();

  FoundEntries find_all(const EntryIds& ids) override { return lookup_.find_all(ids); }
  std::vector<bool> are_current(const EntryIds& ids,
                                const std::vector<Sequence>& sequences) override {
    return lookup_.are_current(ids, sequences);
  }
  std::vector<Sequence> sequences(const EntryIds& ids) override { return lookup_.sequences(ids); }
  std::size_t expect(const EntryIds& ids, std::uint64_t most_bytes) override {
    return lookup_.expect(ids, most_bytes);
  }
  Moment now() const override { return attached_.now(); }
  bool was_cleared_since(const Moment& moment, const EntryId& id) override {
    return lookup_.was_cleared_since(moment, id.context, id.key);
  }
  std::uint64_t removals() const override { return attached_.removals(); }
  Status put_all(const Context& context, std::span<const Digest128> addresses,
                 const std::vector<RowPut>& puts, std::vector<Sequence>& sequences) override {
    return intake_.put_all(context, addresses, puts, sequences);
  }
  Status drop(const EntryId& id, Sequence sequence) override;
  Status take_back(const EntryIds& ids, const std::vector<Sequence>& sequences) override;
  Result<std::int64_t> clear(const ClearFilter& filter) override { return clearer_.clear(filter); }
  Result<Evicted> evict(std::uint64_t to_bytes) override;
  Status flush() override;
  Result<std::string> find_note(std::string_view about) override;
  Status keep_note(std::string_view about, std::string_view text) override;
  Status clear_notes() override;
  Result<Totals> totals() override;
  bool is_read_only() const override { return attached_.is_read_only(); }
  bool has_ageing_entries() const override { return true; }
  bool is_attached() const override { return attached_.is_attached(); }

 private:
  bool take_out_of_queue(const EntryIds& ids, const std::vector<Sequence>& sequences);

  // In this order: each uses only those above it, and the threads of the last ones end first.
  AttachedDirectory attached_;
  DiskBudget budget_;
  WriteQueue queue_;
  OutdatedEntries outdated_;
  UsageTracker usage_;
  Committer committer_;
  Lookup lookup_;
  Reclaimer reclaimer_;
  Admission admission_;
  IndexMirror mirror_;
  OutdatedRemover remover_;
  Clearer clearer_;
  Writer writer_;
  Intake intake_;
};

}  // namespace modcache::store
