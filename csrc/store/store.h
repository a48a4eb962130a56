// SPDX-License-Identifier: Apache-2.0
//
// Store: bytes by (context, key) in one directory, shared by any number of processes, or in a pack.
// A SQLite database is the index and the source of truth; payloads lie in append-only segment
// files that are never changed in place (FORMAT.md has every byte).
//
// Who may call it: the disk tier, from any thread. A Store must not be used in a forked child:
// the child leaves the object alone (neither using nor destroying it) and opens its own.
//
// Promises
//  - find() returns the bytes that put() was given, or kNotFound, or kCorruption; never others.
//    Every header and payload is bounded and checksummed before it is believed.
//  - put() returns at once (Durability::kRelaxed): one background thread appends what is queued
//    and commits it at most 100 ms later, after which it survives SIGKILL. This process finds it
//    immediately, other processes once it is committed. What needs a confirmation waits for it.
//  - flush() returns when everything put before it survives power loss.
//  - No call waits longer than options.patience_ms for another process.
//  - A missing, foreign or broken database is rebuilt from the segments when the store opens;
//    one of a newer version is refused (kUnsupportedVersion) and no byte changes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/confirmation.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/found_entries.h"

namespace modcache::store {

// What besides the key identifies an entry. `description` is what the digest was made from;
// the store keeps it once per context, and `scope` for clearing, and does not interpret them.
struct Context {
  Digest128 digest;
  std::string scope;
  std::string description;
};

// Borrowed: valid as long as its referents. `key` may hold any bytes, and is never empty.
struct EntryId {
  const Context& context;
  std::string_view key;
};

struct Put {
  EntryId id;
  std::string header;   // opaque to the store; at most kMaxHeaderSizeBytes
  SharedBytes payload;  // kept until written
  std::int64_t run_us = 0;
  // The caller knows that it takes the place of another value, which must not be found again, even
  // where the directory has evicted that one: it counts as a removal then, too.
  bool replaces = false;
  // Null: none is needed. Else the entry is written once it is confirmed, and is not found any more
  // once it is refuted. REQUIRES: the caller keeps its evidence alive during the call.
  ConfirmationPtr confirmation = nullptr;
};
// One of many that are put into the same context. Key and header are borrowed during the call.
struct RowPut {
  std::string_view key;
  std::string_view header;
  SharedBytes payload;
  std::int64_t run_us = 0;
  bool replaces = false;
  std::int64_t stored_at_us = 0;           // since 1970; 0: now
  ConfirmationPtr confirmation = nullptr;  // as in Put
};
inline constexpr std::size_t kMaxHeaderSizeBytes = 1 << 20;
inline constexpr std::size_t kMaxKeySizeBytes = 1 << 24;

// An entry that was found. It stays readable however long it is kept, also when the entry is
// cleared or replaced meanwhile.
class FoundEntry {
 public:
  virtual ~FoundEntry() = default;
  virtual const std::string& header() const = 0;
  virtual std::size_t payload_size_bytes() const = 0;
  virtual Sequence sequence() const = 0;
  virtual std::int64_t run_us() const = 0;
  virtual std::int64_t stored_at_us() const = 0;  // since 1970
  // Null: it needs none (any more).
  virtual ConfirmationPtr confirmation() const { return nullptr; }
  // Fills payload_size_bytes() bytes at `target` and checks their checksum. kCorruption or
  // kIoError: what lies at `target` must not be used.
  virtual Status read_payload(void* target) const = 0;
};

// The upper half of a count of removals is a random number, another one for each control page and
// pack: of what was known at one of these counts nothing can be told where the other is counted,
// since sequences begin anew there.
inline constexpr int kSourceShift = 32;
inline std::uint64_t first_removals() { return random_number() << kSourceShift | 1; }
inline bool are_of_one_source(std::uint64_t removals, std::uint64_t other) {
  return removals >> kSourceShift == other >> kSourceShift;
}

struct Totals {
  std::int64_t entries = 0;
  std::int64_t size_bytes = 0;  // of all files on disk
};

struct Evicted {
  std::int64_t entries = 0;
  std::int64_t freed_bytes = 0;  // of files that are gone
  // The directory is still larger than was asked for, and a process keeps a segment to write to.
  bool is_hindered = false;
};

// Which entries clear() removes: all, narrowed by what is not empty.
struct ClearFilter {
  std::string scope;  // or a range of scopes (scope_filter.h)
  std::string key_prefix;
  std::int64_t older_than_us = 0;  // stored before then (since 1970); 0: whenever

  bool covers_everything() const {
    return scope.empty() && key_prefix.empty() && older_than_us == 0;
  }
};

enum class Durability { kRelaxed, kStrict };  // kStrict: put() returns after power-loss safety
enum class ReadVia { kMmap, kPread };

struct StoreOptions {
  std::string directory;
  std::uint64_t disk_budget_bytes = 100ULL * 1000 * 1000 * 1000;
  Durability durability = Durability::kRelaxed;
  ReadVia read_via = ReadVia::kMmap;
  bool writable = true;    // false: nothing in the directory is created or changed
  bool is_strict = false;  // a directory that everybody may write is refused, and not just told of
  std::int64_t patience_ms = 500;
  std::int64_t max_age_us = 0;  // older entries are not found, and leave first; 0: no bound
  // Who leaves when the directory is full, and who may come; see policy::make_policy for the
  // argument. Null: the segments that were begun first leave, and everybody may come.
  std::function<std::unique_ptr<policy::Policy>(void* shared_state)> make_policy;
  // Called from background threads, and from evict(): entries that left to make room.
  std::function<void(std::int64_t entries)> on_evicted;
  // Called from the background thread: entries that put() had taken and that found no room.
  std::function<void(std::int64_t entries)> on_not_kept;
  // Called from open(), for each thing in the directory that is no file of ours and that the store
  // does without, or for which it only reads: kForeign.
  std::function<void(const Status&)> on_foreign_file;
  // Called from the background thread for each write that failed after put() had returned.
  std::function<void(const Status&, std::int64_t entries)> on_write_error;
};

class Store {
 public:
  // A file in the directory's place must be a pack (pack_store.h), which is only read.
  // Creates the directory (mode 0700 where it makes it) when `writable`. A directory that cannot
  // be written falls back to reading; is_read_only() tells.
  static Result<std::unique_ptr<Store>> open(fs::FileSystem& file_system, StoreOptions options);

  // Commits what is queued (without syncing), then closes.
  virtual ~Store() = default;

  virtual Result<std::unique_ptr<FoundEntry>> find(const EntryId& id) = 0;

  // Many keys at once, each found or not as find() would; a broken entry is the failure of that
  // entry alone. For keys that this process has met before it takes no SQL, no memory, no lock and
  // no system call per key: a payload is verified when it is first read, and later only the
  // record's sequence, context and key are compared in the file. (Entries with a header above 4 KiB
  // are asked of the index each time.)
  virtual FoundEntries find_all(const Context& context,
                                const std::vector<std::string_view>& keys) = 0;

  // True when `sequence` is still what (context, key) leads to.
  virtual bool is_current(const EntryId& id, Sequence sequence) = 0;
  // The same for many, with one lock of the index. False also for what cannot be told.
  virtual std::vector<bool> are_current(const Context& context,
                                        const std::vector<std::string_view>& keys,
                                        const std::vector<Sequence>& sequences) = 0;

  // Grows whenever any process clears or replaces an entry: what a caller holds in memory must
  // then be asked after with is_current(), or forgotten where are_of_one_source() is false. One
  // atomic load (io=pread: one read).
  virtual std::uint64_t removals() const = 0;

  // Replaces what (context, key) led to before. Returns the entry's sequence; 0: it is not kept,
  // since it is larger than the budget, the directory is full of what is rather kept, or this is a
  // pack. (One that `replaces` then at least makes the older one go.) kBusy: the queue stayed full.
  virtual Result<Sequence> put(Put put) = 0;
  // Many at once, in order. `sequences` gets one for each put; 0: it is not kept, which is no
  // failure. kInvalidArgument: the key or the header of these is too large (or the key empty), and
  // all others were treated as ever. Other codes: the directory failed, and took what came before.
  virtual Status put_all(const Context& context, const std::vector<RowPut>& puts,
                         std::vector<Sequence>& sequences) = 0;

  // Forgets an entry that proved broken, if it still is `sequence`.
  virtual Status drop(const EntryId& id, Sequence sequence) = 0;

  // Returns the number of entries removed. Nothing that any process put before is found after.
  virtual Result<std::int64_t> clear(const ClearFilter& filter) = 0;

  // Makes entries leave until the directory has `to_bytes` at most, or none is left, whatever the
  // policy would keep; what still is read counts until it is let go of. Processes that write are
  // asked to leave their segments, and waited for up to a second. kBusy: another process is at it.
  virtual Result<Evicted> evict(std::uint64_t to_bytes) = 0;

  virtual Status flush() = 0;

  // Notes (notes.h). A pack, like a directory that can only be read, keeps no new ones.
  virtual Result<std::string> find_note(std::string_view about) = 0;
  virtual Status keep_note(std::string_view about, std::string_view text) = 0;
  virtual Status clear_notes() = 0;

  virtual Result<Totals> totals() = 0;

  virtual bool is_read_only() const = 0;

  // False: no entry is ever too old (a pack), also to who holds it in memory.
  virtual bool has_ageing_entries() const = 0;

  // False once the directory was removed or its database replaced underneath, or another file took
  // the pack's place, which is seen within some 250 ms: the owner opens a new Store. Costs two
  // atomic loads (io=pread: one read) in a directory that can be written, where a background thread
  // looks; elsewhere a glance at the clock, and every 100 ms a look at the files.
  virtual bool is_attached() const = 0;
};

}  // namespace modcache::store
