// SPDX-License-Identifier: Apache-2.0
//
// Store: bytes by (context, key), in one directory that any number of processes share, or in a
// pack. A SQLite database is the index and the source of truth. Payloads are in append-only segment
// files, which are never changed in place (FORMAT.md has every byte).
//
// The disk tier calls it from any thread. A forked child must not use the parent's Store: it
// neither uses nor destroys the object, and opens its own.
//
// Promises
//  - find() returns the bytes that put() was given, kNotFound or kCorruption, never other bytes.
//    Bounds and checksum of every header and payload are checked before it is believed.
//  - put() returns at once (Durability::kRelaxed). One background thread appends what is queued and
//    commits it at most 100 ms later; then it survives SIGKILL. This process finds it immediately,
//    other processes find it once it is committed.
//  - flush() returns when everything that was put before survives power loss.
//  - No call waits longer than options.patience_ms for another process.
//  - Opening rebuilds a missing, foreign or broken database from the segments. A directory of
//    another version is refused (kUnsupportedVersion), and no byte is changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/entry/removals.h"
#include "store/entry/totals.h"
#include "store/found/found_entries.h"
#include "store/found/found_entry.h"

namespace modcache::store {

class Store {
 public:
  // A file in the directory's place must be a pack (pack_store.h), which is only read. Creates a
  // missing directory (mode 0700) when options.writable is set. A directory that cannot be written
  // is opened for reading; is_read_only() tells.
  static Result<std::unique_ptr<Store>> open(fs::FileSystem& file_system, StoreOptions options);

  // Commits what is queued, without syncing it, and closes the store.
  virtual ~Store() = default;

  // Looks many keys up. A broken entry is a failure of that entry alone. A key that this process
  // has found before takes no SQL, no memory, no lock and no system call: the payload is verified
  // when it is first read, and later only the record's sequence, context and key are compared in
  // the file. (An entry with a header above 4 KiB is looked up in the index each time.)
  virtual FoundEntries find_all(const EntryIds& ids) = 0;

  // Returns for each key whether it still leads to this sequence. Takes the lock of the index once.
  // False when that cannot be determined, and for sequence 0.
  virtual std::vector<bool> are_current(const EntryIds& ids,
                                        const std::vector<Sequence>& sequences) = 0;

  // Returns for each key the sequence of the entry that it leads to, without a look at the record,
  // which may prove broken; 0: there is none. It is no use of the entry.
  virtual std::vector<Sequence> sequences(const EntryIds& ids) = 0;

  // A hint: the records of these keys will be read soon, in this order. Has the kernel read those
  // of the first keys, up to `most_bytes`, in few large pieces, and waits for none. Returns how
  // many of the keys that are: at least one. REQUIRES: keys, and most_bytes > 0. Only records that
  // the shared index knows are read.
  virtual std::size_t expect(const EntryIds& ids, std::uint64_t most_bytes) {
    (void)most_bytes;
    return ids.size();
  }

  // Do the same for callers that have no addresses yet.
  FoundEntries find_all(const Context& context, const std::vector<std::string_view>& keys);
  std::vector<bool> are_current(const Context& context, const std::vector<std::string_view>& keys,
                                const std::vector<Sequence>& sequences);
  // Do the same for a single key. kNotFound: there is no such entry. kCorruption: it is broken.
  Result<std::unique_ptr<FoundEntry>> find(const EntryId& id);
  bool is_current(const EntryId& id, Sequence sequence);

  // Grows whenever any process clears or replaces an entry. A caller that holds entries in memory
  // must then check them with is_current(), or forget them if are_of_one_source() is false. Takes
  // one atomic load (with ReadVia::kPread: one read).
  virtual std::uint64_t removals() const = 0;

  // Returns the present moment, and whether a clear since then covers this entry. A moment of
  // another source is always covered. Takes a few atomic loads where nothing was cleared.
  virtual Moment now() const = 0;
  virtual bool was_cleared_since(const Moment& moment, const EntryId& id) = 0;

  // Replaces the entry of (context, key). Returns the new entry's sequence. 0: it is not kept,
  // because it is larger than the budget, because the directory is full of entries that the policy
  // prefers, or because this is a pack. (If Put::replaces is set, the older entry is removed all
  // the same.) kBusy: the queue stayed full.
  Result<Sequence> put(Put put);
  // Puts many entries, in order. `sequences` gets one for each; 0: it is not kept, which is no
  // failure. kInvalidArgument: keys or headers are too large, or keys are empty, and all other
  // entries were put. Other codes: the directory failed; it took the entries before the failure.
  // REQUIRES: the addresses of the puts' keys, in their order.
  virtual Status put_all(const Context& context, std::span<const Digest128> addresses,
                         const std::vector<RowPut>& puts, std::vector<Sequence>& sequences) = 0;
  // The same for callers that have no addresses yet.
  Status put_all(const Context& context, const std::vector<RowPut>& puts,
                 std::vector<Sequence>& sequences);

  // Removes an entry that proved broken, if it still has this sequence.
  virtual Status drop(const EntryId& id, Sequence sequence) = 0;
  // Removes what was put a moment ago with these sequences; 0: nothing of that id.
  virtual Status take_back(const EntryIds& ids, const std::vector<Sequence>& sequences) {
    (void)ids, (void)sequences;
    return Status::ok();
  }

  // Removes entries, and returns their number. What any process had put before is not found again.
  virtual Result<std::int64_t> clear(const ClearFilter& filter) = 0;

  // Evicts entries, whatever the policy prefers, until the directory has at most `to_bytes` or no
  // entry is left. A segment that somebody still reads counts until it is released. Asks processes
  // that write to leave their segments, and waits for that up to a second. kBusy: another process
  // is evicting.
  virtual Result<Evicted> evict(std::uint64_t to_bytes) = 0;

  virtual Status flush() = 0;

  // Find, keep and remove notes (notes.h). A pack and a directory that can only be read keep no new
  // ones.
  virtual Result<std::string> find_note(std::string_view about) = 0;
  virtual Status keep_note(std::string_view about, std::string_view text) = 0;
  virtual Status clear_notes() = 0;

  virtual Result<Totals> totals() = 0;

  virtual bool is_read_only() const = 0;

  // Returns whether entries can become too old, also those that a caller holds in memory. False for
  // a pack.
  virtual bool has_ageing_entries() const = 0;

  // Returns false once the directory was removed, its database was replaced, or another file took
  // the pack's place; the owner then opens a new Store. A change is noticed within about 250 ms. In
  // a directory that can be written this takes two atomic loads (with ReadVia::kPread: one read),
  // as a background thread looks at the files. Elsewhere it reads the clock, and looks at the files
  // every 100 ms.
  virtual bool is_attached() const = 0;
};

}  // namespace modcache::store
