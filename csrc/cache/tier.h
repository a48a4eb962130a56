// SPDX-License-Identifier: Apache-2.0
//
// Tier: one level of the cache. A lookup asks the tiers from the nearest to the farthest, and a
// result is stored in all of them, the farthest first (tiers.h has the list). All functions take
// keys of one context; a single key is a batch of one.
//
// Contract of every tier: no call fails or throws for a reason of the tier's own. What goes wrong
// is counted, logged once for each cause, and is a miss. Thread-safe; usable in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/one_or_many.h"
#include "cache/found.h"
#include "cache/keys.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "store/store.h"

namespace modcache::cache {

// The access that the mode allows. Only a call that may write makes a directory that is not there,
// and drops an entry that proves damaged.
enum class Access { kRead, kWrite };

// Whether a miss counts as a lookup to the policy.
enum class OnMiss { kCount, kIgnore };

// kOnce: the value is handed out and not stored in any nearer tier. Then its bytes may stay where
// they are.
enum class Reading { kToKeep, kOnce };

// How entries are stored.
struct StoreOptions {
  // The entries take the place of other values, which must go even where there is no room.
  bool replaces = false;
  // Only if the scope was not cleared since then; null: in any case.
  const Generation* since = nullptr;
};

// Where an entry was stored.
struct Kept {
  store::Sequence sequence = 0;      // in the directory; 0: it is not there
  std::uint64_t removals = 0;        // of the directory, from before it was stored there
  bool is_kept = false;              // by any tier
  const Entry* in_memory = nullptr;  // that the memory tier has
  bool is_cleared = false;  // its scope was cleared since the call began: no tier stores it
};

class Tier {
 public:
  virtual ~Tier() = default;

  // The counter of what this tier answers.
  virtual Counter hits() const = 0;

  // Whether a lookup takes a round trip through a network.
  virtual bool is_far() const { return false; }

  // Adds to `found` what this tier has of the keys. Neither counts hits nor compares inputs.
  virtual void find(const Keys& keys, Access access, OnMiss on_miss, Found& found) = 0;

  // Reads a row that find() added into an entry of this process. The checksum of one that is to be
  // kept is verified at each read; otherwise when this process first reads the row. Null: it proved
  // broken, and is refused. Only tiers that add rows are asked.
  virtual HeldEntry read(const store::EntryId& id, FoundRows& rows, std::size_t row, Access access,
                         Reading reading) {
    (void)id, (void)rows, (void)row, (void)access, (void)reading;
    return {};
  }

  // Returns whether it could store an entry of this size.
  virtual bool has_room_for(std::uint64_t size_bytes) const {
    (void)size_bytes;
    return true;
  }

  // Stores entries[i] for key i, as far as the policy admits it, and notes that in kept[i], which
  // says what the farther tiers did. entries[i] becomes the entry as it is stored, which may lie in
  // another memory.
  virtual void store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
                     OneOrMany<Kept>& kept) = 0;

  // Stores rows as they are that a farther tier found: rows[which[k]] for key k. Notes in kept[k]
  // as store() does. Skips keys that have an entry by now, which is newer, and those whose scope
  // was cleared in the directory `since` the farther tier was asked.
  virtual void store_rows(const Keys& keys, const FoundRows& rows,
                          const std::vector<std::size_t>& which,
                          const std::optional<store::Moment>& since, OneOrMany<Kept>& kept) {
    (void)keys, (void)rows, (void)which, (void)since, (void)kept;
  }

  // Removes what store_rows() or store() just stored, as kept[k] says, and nothing that came since.
  virtual void take_back(const Keys& keys, std::span<const Kept> kept) { (void)keys, (void)kept; }

  // An entry that find() gave proved broken: counts it, and drops it if the access allows and the
  // key still leads to `sequence`.
  virtual void refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
                      Access access) = 0;

  // Removes the entry of the key: its value proved wrong. Where the access allows no more, the
  // memory tier does.
  virtual void drop(const store::EntryId& id, Access access) = 0;

  // Adds what the tier holds now to the counters' table, by name. A tier that is not open opens for
  // it only if it `may_open`.
  virtual void add_sizes(std::map<std::string, std::int64_t>& sizes, bool may_open) = 0;
};

}  // namespace modcache::cache
