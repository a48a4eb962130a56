// SPDX-License-Identifier: Apache-2.0
//
// Tier: one level of the cache. A session asks its tiers from the nearest to the farthest and hands
// a result to all of them, the farthest first (tiers.h has the list). Whoever adds a tier writes a
// class of this interface and a line in tiers.cpp.
//
// All questions are about some keys of one context; a single key is a batch of one.
//
// Contract of every tier: no call fails or throws for a reason of the tier's own. What goes wrong
// is counted, logged once for each cause, and is a miss. Thread-safe; usable in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/one_or_many.h"
#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/stats.h"
#include "cache/value.h"
#include "store/store.h"

namespace modcache::cache {

// Some keys of one context with their addresses. Borrowed for the length of a call.
class TierKeys {
 public:
  // REQUIRES: as many addresses as keys, each that of its key.
  TierKeys(const ContextPtr& of_context, std::span<const std::string_view> with_keys,
           std::span<const Digest128> with_addresses)
      : keys(with_keys), addresses(with_addresses), context_(&of_context) {}

  // One key. `context` and `id` must outlive it.
  static TierKeys of_one(const ContextPtr& context, const store::EntryId& id) {
    return {context, std::span<const std::string_view>(&id.key, 1),
            std::span<const Digest128>(&id.address, 1)};
  }

  const ContextPtr& context() const { return *context_; }
  std::size_t size() const { return keys.size(); }
  store::EntryIds ids() const { return {**context_, keys, addresses}; }
  store::EntryId id(std::size_t i) const { return {**context_, keys[i], addresses[i]}; }

  std::span<const std::string_view> keys;
  std::span<const Digest128> addresses;

 private:
  const ContextPtr* context_;
};

// Some keys of a batch, each with the number of its row. Borrows the keys.
struct ChosenKeys {
  std::vector<std::size_t> rows;
  std::vector<std::string_view> keys;
  std::vector<Digest128> addresses;

  bool empty() const { return rows.empty(); }
  void add(std::string_view key, const Digest128& address, std::size_t row) {
    rows.push_back(row);
    keys.push_back(key);
    addresses.push_back(address);
  }
  // Borrowed from this object and `context`.
  TierKeys of(const ContextPtr& context) const { return {context, keys, addresses}; }
};

// The access that the mode allows. Only a call that may write makes a directory that is not there,
// and drops an entry that proves damaged.
enum class Access { kRead, kWrite };

// Whether a miss is a lookup to the policy. Not where the same key is asked for again at once, or
// where nobody will store it.
enum class OnMiss { kCount, kIgnore };

// kOnce: the value is handed out and not kept by any tier. Then its bytes may stay where they lie.
enum class Reading { kToKeep, kOnce };

// An entry in this process, its place in the directory (0: it is not there), and the directory's
// count of removals up to which it is known to be current.
struct HeldEntry {
  EntryPtr entry;
  store::Sequence sequence = 0;
  std::uint64_t removals = 0;
};

// A tier's answer for some keys: entries in this process, or rows that are read where they lie, or
// neither if it has none of the keys.
struct TierFound {
  OneOrMany<HeldEntry> entries;  // one for each key; a null entry is a miss
  std::optional<FoundRows> rows;
  // A far tier says by it whether nothing was cleared or replaced since it was asked. Whoever keeps
  // the rows asks it once they are kept, and drops them if it says no. Null: nobody has to ask.
  std::function<bool()> still_holds;

  bool is_empty() const { return entries.empty() && !rows.has_value(); }
  bool has(std::size_t i) const {
    return entries.empty() ? rows.has_value() && rows->has(i) : entries[i].entry != nullptr;
  }
};

// The outcome of handing an entry to the tiers.
struct Kept {
  store::Sequence sequence = 0;  // its place in the directory; 0: it is not there
  std::uint64_t removals = 0;    // of the directory, from before it was stored there
  bool is_kept = false;          // by any tier
};

class Tier {
 public:
  virtual ~Tier() = default;

  // The counter of what this tier answers.
  virtual Counter hits() const = 0;

  // Whether asking it takes a round trip through a network. Callers that answer plain hits and
  // leave every other call to a full look-up do not ask it, nor those that look again at once.
  virtual bool is_far() const { return false; }

  // Looks the keys up. It neither counts hits nor compares inputs. The answer is empty if it has
  // none of the keys.
  virtual TierFound find(const TierKeys& keys, Access access, OnMiss on_miss) = 0;

  // A row that find() gave, as an entry of this process. The bytes of one that is kept are checked
  // at each read; those of one that is not, as those of a batch, when this process first reads
  // them. Null: it proved broken, and is refused. Only tiers whose answers have rows are asked.
  virtual HeldEntry read(const store::EntryId& id, FoundRows& rows, std::size_t row, Access access,
                         Reading reading) {
    (void)id, (void)rows, (void)row, (void)access, (void)reading;
    return {};
  }

  // Returns whether it could keep an entry of this size.
  virtual bool has_place_for(std::uint64_t size_bytes) const {
    (void)size_bytes;
    return true;
  }

  // Keeps entries[i] for key i, replacing what the key led to, as far as the policy admits it, and
  // notes that in kept[i], which says what the farther tiers did. entries[i] becomes the entry as
  // it is held, which may lie in another memory. `replaces`: the caller knows that the entry takes
  // the place of another value, which must go even where there is no room.
  virtual void store(const TierKeys& keys, OneOrMany<EntryPtr>& entries, bool replaces,
                     OneOrMany<Kept>& kept) = 0;

  // Keeps rows as they are that a farther tier found: rows[which[k]] for key k, in the form that
  // they were asked for. Notes in kept[k] as store() does; what it cannot keep, or need not, stays
  // as it is there.
  virtual void keep_rows(const TierKeys& keys, const FoundRows& rows,
                         const std::vector<std::size_t>& which, Form form, OneOrMany<Kept>& kept) {
    (void)keys, (void)rows, (void)which, (void)form, (void)kept;
  }

  // Removes what keep_rows() or store() kept of these keys a moment ago, as kept[k] says. From the
  // directory nothing that came there since goes with it.
  virtual void take_back(const TierKeys& keys, std::span<const Kept> kept) {
    (void)keys, (void)kept;
  }

  // Something of an entry proved broken after find() gave it: counts it, and drops it if the access
  // allows and the key still leads to `sequence`.
  virtual void refuse(const store::EntryId& id, store::Sequence sequence, const Status& broken,
                      Access access) = 0;

  // Removes the entry that the key leads to, whichever it is: its value proved wrong. Where the
  // access allows no more, the tier of this process's own memory does.
  virtual void drop(const store::EntryId& id, Access access) = 0;

  // Returns what is known without reading the value; nothing if there is no entry. Counts and drops
  // nothing.
  virtual std::optional<EntryInfo> look(const store::EntryId& id) = 0;
  bool contains(const store::EntryId& id) { return look(id).has_value(); }

  // Adds what the tier holds now to the counters' table, by name. A tier that is not open opens for
  // it only if it `may_open`.
  virtual void add_sizes(std::map<std::string, std::int64_t>& sizes, bool may_open) = 0;
};

}  // namespace modcache::cache
