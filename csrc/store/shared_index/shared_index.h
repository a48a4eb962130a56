// SPDX-License-Identifier: Apache-2.0
//
// SharedIndex: one mapped hash table (address -> place of a record) for all processes of a
// directory, in the file `index.map`. It answers what the database would, without SQL and without a
// copy in each process; the database stays the source of truth, and the table can be made anew from
// it at any time.
//
// Readers wait for nobody. A slot may change under them: what find() gives is believed only after
// the record there has the same sequence, context and key. Writers hold the directory's lock.
// Thread-safe.
//
// The control page says which file is the one in use (0: none, and every answer is kUnknown), so
// that a process which cannot keep the table up to date can put it out of use for all, and a larger
// one takes its place between two calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "policy/policy.h"
#include "store/control/control_page.h"
#include "store/directory.h"
#include "store/found_entries.h"
#include "store/reclaim/policy_state.h"
#include "store/shared_index/index_table.h"

namespace modcache::store {

class SharedIndex {
 public:
  struct Slot {
    std::uint64_t tag = 0;  // of the address: what policies know the entry by
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
    Sequence sequence = 0;
    std::uint64_t size_bytes = 0;  // of the whole record, rounded up by at most 0.1 %
    policy::Usage usage;
  };

  // What to do with the answer: kAbsent is a miss without asking the database, kUnknown means that
  // the table cannot tell (there is none, it is being made or changed, or two addresses share a
  // slot).
  using Answer = IndexTable::Answer;

  // `control` (null: there is never a table) and `directory` must outlive it. `database` is the
  // file that the table mirrors. With ReadVia::kPread it answers nothing, and still writes.
  SharedIndex(const Directory& directory, ControlPage* control, const fs::FileInfo& database,
              ReadVia read_via, bool is_writable);

  Answer find(const Digest128& address, Slot& slot) const;
  // Calls visit(place, answer, slot) for addresses[rows[place]], in order.
  void find_all(const std::vector<Digest128>& addresses, const std::vector<std::size_t>& rows,
                const std::function<void(std::size_t, Answer, const Slot&)>& visit) const;

  // Hints, without a lock: lost when the entry moves at the same moment.
  void note_use(const Digest128& address, Sequence sequence, policy::Usage usage);

  // Counts lookups and stores of all processes (of this one where nothing can be shared).
  policy::Tick tick(std::uint32_t count = 1);
  policy::Tick now() const;
  // policy::kSharedStateBytes of memory shared by all processes, as long as this object lives;
  // null before share_policy_state(), or where there is none.
  void* policy_state() const { return policy_ == nullptr ? nullptr : policy_->bytes(); }
  // `may_create`: makes it where it is missing (1 MiB that counts). REQUIRES: the directory's lock
  // is held, and no other thread uses this object yet.
  void share_policy_state(bool may_create);

  // All entries, in no order. Those that change meanwhile may be seen as before, after or not. None
  // while has_all() is false.
  void for_each(const std::function<void(const Slot&)>& visit) const;
  std::uint64_t entries() const;
  // Whether there is a table with all entries in it.
  bool has_all() const;
  std::uint64_t size_bytes() const;

  // Writing. REQUIRES, for all that follow: the directory's lock is held by this thread, and the
  // database was or will be changed alike between begin() and commit(). A process that dies in
  // between leaves a table that the next one makes anew. Nothing here fails a write to the
  // database: a table that cannot follow is put out of use.
  struct Change {
    Digest128 address;
    std::uint64_t segment = 0;  // 0: the entry is removed, if it still has this sequence
    std::uint64_t offset = 0;
    Sequence sequence = 0;
    std::uint64_t size_bytes = 0;
    policy::Usage usage;
    Sequence instead_of = 0;  // what the database had for this entry before; 0: nothing. One that
                              // only moves keeps its sequence.
  };
  void begin();
  void apply(const std::vector<Change>& changes);
  // `last_sequence` is that of the database then.
  void commit(Sequence last_sequence);
  // The database was not changed.
  void cancel();

  // Puts a table out of use that this database is not the origin of, or that somebody died over.
  void check(Sequence last_sequence);
  // Puts the table out of use: every process asks the database from its next call on.
  void discard();
  // A new table without entries takes its place.
  void reset(Sequence last_sequence);

  // Building, a part at a time (index_map_builder.h): from start_building() on all changes are
  // applied to the new table too, and rows of the database as it was then or later are added. True:
  // this process builds now.
  bool start_building(std::uint64_t expected_entries, Sequence last_sequence);
  // False: the table was put out of use meanwhile.
  bool add_rows(const std::vector<Change>& rows);
  bool finish_building();
  // Gives up, unless it was finished. (No lock is needed.)
  void stop_building();
  // Whether a table has to be made: none is there, or whoever made one died.
  bool needs_building() const;

 private:
  using TablePtr = std::shared_ptr<IndexTable>;

  TablePtr table() const;
  // The table to read: null with ReadVia::kPread.
  TablePtr readable() const { return read_via_ == ReadVia::kMmap ? table() : nullptr; }
  Result<IndexTable::Owner> owner() const;
  TablePtr change_begun() const;
  TablePtr publish(Result<TablePtr> created);
  static Slot slot_of(const IndexTable::Found& found);
  static IndexTable::Found found_of(const Change& change);

  const Directory& directory_;
  ControlPage* const control_;
  const fs::FileInfo database_;
  const ReadVia read_via_;
  const bool is_writable_;

  mutable Mutex mutex_;
  mutable TablePtr table_ MODCACHE_GUARDED_BY(mutex_);
  // The table that was asked for last and is none; 0: no such.
  mutable std::uint64_t refused_ MODCACHE_GUARDED_BY(mutex_) = 0;

  TablePtr changing_;  // between begin() and commit(); for whoever holds the lock
  TablePtr building_;  // whose lock this process holds
  std::unique_ptr<PolicyState> policy_;
  std::atomic<std::uint64_t> own_ticks_{0};
};

}  // namespace modcache::store
