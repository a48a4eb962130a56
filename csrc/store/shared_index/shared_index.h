// SPDX-License-Identifier: Apache-2.0
//
// SharedIndex: one mapped hash table (address -> place of a record) for all processes of a
// directory, in the file `index.map`. It answers in place of the database, without SQL and without
// a copy in each process. The database stays the source of truth, and the table can be rebuilt from
// it at any time.
//
// Readers never wait. A slot may change while it is read, so the result of find() is trusted only
// after the record there was found to have the same sequence, context and key. Writers hold the
// directory's lock. Thread-safe.
//
// The control page says which file is in use (0: none, and every answer is kUnknown). So a process
// that cannot keep the table up to date can put it out of use for all, and a larger table can
// replace it between two calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/control/control_page.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/shared_index/index_table.h"
#include "store/shared_index/policy_state.h"

namespace modcache::store {

class SharedIndex {
 public:
  using Slot = IndexTable::Slot;

  // kAbsent is a miss without asking the database. kUnknown means that the table cannot tell: there
  // is none, it is being built or changed, or two addresses share a slot.
  using Answer = IndexTable::Answer;

  // `control` (null: there is never a table) and `directory` must outlive this object. `database`
  // is the file that the table mirrors. With ReadVia::kPread the index answers nothing, but still
  // writes.
  SharedIndex(const Directory& directory, ControlPage* control, const fs::FileInfo& database,
              ReadVia read_via, bool is_writable);

  Answer find(const Digest128& address, Slot& slot) const;
  // Calls visit(place, answer, slot) for addresses[rows[place]], in order.
  void find_all(std::span<const Digest128> addresses, const std::vector<std::size_t>& rows,
                const std::function<void(std::size_t, Answer, const Slot&)>& visit) const;

  // Notes uses as hints: used(i, usage) is what the use makes of the usage of the entry at
  // addresses[i], if that still has sequences[i] (0: nothing is noted of it). Takes the lock once,
  // for all of them. A use is lost when the entry moves at the same moment.
  using UsedAt = std::function<policy::Usage(std::size_t i, policy::Usage usage)>;
  void note_uses(std::span<const Digest128> addresses, std::span<const Sequence> sequences,
                 const UsedAt& used);

  // Counts lookups of all processes (of this one where nothing can be shared).
  policy::Tick tick(std::uint32_t count = 1);
  policy::Tick now() const;
  // Where ticks are not shared, continues from the latest recorded use, so that the ages of uses by
  // earlier processes make sense. Reads all entries.
  void catch_up_ticks();
  // policy::kSharedStateBytes of memory shared by all processes, as long as this object lives; null
  // before share_policy_state(), or where there is none.
  void* policy_state() const { return policy_ == nullptr ? nullptr : policy_->bytes(); }
  // `may_create`: creates the file where it is missing (1 MiB, which counts towards the budget).
  // REQUIRES: the directory's lock is held, and no other thread uses this object yet.
  void share_policy_state(bool may_create);

  // Visits all entries, in no order. Entries that change meanwhile may be seen before or after the
  // change, or not at all. Visits none while has_all() is false.
  void for_each(const std::function<void(const Slot&)>& visit) const;
  // Visits up to `count` entries; `seed` chooses them.
  void sample(std::uint64_t seed, std::size_t count,
              const std::function<void(const Slot&)>& visit) const;
  std::uint64_t entries() const;
  // Returns whether there is a table with all entries in it.
  bool has_all() const;
  std::uint64_t size_bytes() const;

  // Writing. REQUIRES for all that follow: this thread holds the directory's lock, and makes the
  // same change to the database between begin() and commit(). A process that dies in between leaves
  // a table that the next one rebuilds. No error here fails a write to the database: a table that
  // cannot follow is put out of use.
  struct Change {
    Digest128 address;
    Sequence sequence = 0;
    std::uint64_t segment = 0;  // 0: the entry is removed, if it still has this sequence
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
    policy::Usage usage{};
    // The entry's previous sequence in the database; 0: none. An entry that only moves keeps its
    // sequence.
    Sequence instead_of = 0;
  };
  void begin();
  void apply(const std::vector<Change>& changes);
  // Ends the change. `last_sequence` is the database's after it.
  void commit(Sequence last_sequence);
  // Ends the change without one: the database was not changed.
  void cancel();

  // Puts a table out of use that does not come from this database, or that a process died over.
  void check(Sequence last_sequence);
  // Puts the table out of use: every process asks the database from its next call on.
  void discard();
  // Replaces the table by one without entries.
  void reset(Sequence last_sequence);

  // Builds a table in parts (index_map_builder.h): from start_building() on all changes are applied
  // to the new table, too, and the rows of the database, as they were then or later, are added.
  // Returns true when this process is now the builder.
  bool start_building(std::uint64_t expected_entries, Sequence last_sequence);
  // Return false when the table was put out of use meanwhile.
  bool add_rows(const std::vector<Change>& rows);
  bool finish_building();
  // Gives up, unless the table was finished. (Needs no lock.)
  void stop_building();
  // Returns whether a table has to be built: there is none, or its builder died.
  bool needs_building() const;

 private:
  using TablePtr = std::shared_ptr<IndexTable>;

  TablePtr table() const;
  // Returns the table to read: null with ReadVia::kPread.
  TablePtr readable() const { return read_via_ == ReadVia::kMmap ? table() : nullptr; }
  Result<IndexTable::Owner> owner() const;
  Result<TablePtr> create_table(std::uint64_t expected_entries, Sequence last_sequence,
                                bool is_building);
  TablePtr publish(Result<TablePtr> created);
  // Returns whether the table that this process builds is still in use; gives it up if not.
  bool is_builder();
  static Slot slot_of(const Change& change);

  const Directory& directory_;
  ControlPage* const control_;
  const fs::FileInfo database_;
  const ReadVia read_via_;
  const bool is_writable_;

  mutable Mutex mutex_;
  mutable TablePtr table_ MODCACHE_GUARDED_BY(mutex_);
  // The table that was asked for last and could not be used; 0: none.
  mutable std::uint64_t refused_ MODCACHE_GUARDED_BY(mutex_) = 0;

  TablePtr changing_;  // between begin() and commit(); for the owner of the lock
  TablePtr building_;  // the table whose lock this process holds
  std::unique_ptr<PolicyState> policy_;
  std::atomic<std::uint64_t> own_ticks_{0};
};

}  // namespace modcache::store
