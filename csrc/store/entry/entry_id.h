// SPDX-License-Identifier: Apache-2.0
//
// The identity of an entry: its context, its key, and its position among everything that was
// stored. All parts of the store use these types. They are plain values; any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/one_or_many.h"

namespace modcache::store {

// The position of an entry among everything that a directory ever stored: later entries have
// greater ones, and an entry that replaces another has a new one. 0 is never used.
using Sequence = std::uint64_t;
// Records with a greater one are not read: SQLite's numbers are signed, and what comes after a
// sequence has to be greater than it.
inline constexpr Sequence kMaxSequence = Sequence{1} << 62;

// Identifies an entry together with the key. `description` is the text that the digest was made
// from; the store keeps it once per context, and `scope` for clearing, and interprets neither.
struct Context {
  Digest128 digest;
  std::string scope;
  std::string description;
};

// The address of a context and a key, by which maps in memory, the shared index and packs are
// searched. It is a hash, so two ids may share one, and a stranger can construct two that do. So
// context and key are always compared, too.
Digest128 address_of(const Digest128& context, std::string_view key);
// Returns the addresses of many keys of one context, in their order.
OneOrMany<Digest128> addresses_of(const Digest128& context, std::span<const std::string_view> keys);

// Borrows its context and key. `key` may hold any bytes, and is never empty. A call makes one
// EntryId and passes it on, so that the address is hashed once.
struct EntryId {
  EntryId(const Context& of_context, std::string_view with_key)
      : EntryId(of_context, with_key, address_of(of_context.digest, with_key)) {}
  // REQUIRES: `with_address` is the address of both.
  EntryId(const Context& of_context, std::string_view with_key, const Digest128& with_address)
      : context(of_context), key(with_key), address(with_address) {}

  const Context& context;
  std::string_view key;
  Digest128 address;
};

// Many ids of one context: a batch, or a single id as a batch of one. Borrowed, like an EntryId.
// REQUIRES: as many addresses as keys, each that of its key.
struct EntryIds {
  const Context& context;
  std::span<const std::string_view> keys;
  std::span<const Digest128> addresses;
  // Entries that are older are not found; 0: none is too old. nullopt: the store's own.
  std::optional<std::int64_t> max_age_us = std::nullopt;

  std::size_t size() const { return keys.size(); }
  EntryId operator[](std::size_t i) const { return {context, keys[i], addresses[i]}; }
};
// A single id as a batch of one. Borrowed from `id` itself.
inline EntryIds batch_of(const EntryId& id) {
  return {id.context, std::span<const std::string_view>(&id.key, 1),
          std::span<const Digest128>(&id.address, 1)};
}

inline constexpr std::size_t kMaxKeySizeBytes = 1 << 24;

// The entries that clear() removes: all that match every condition that is set.
struct ClearFilter {
  std::string scope;  // or a range of scopes (scope_filter.h)
  std::string key_prefix;
  std::int64_t older_than_us = 0;  // stored before then (since 1970); 0: at any time

  bool covers_everything() const {
    return scope.empty() && key_prefix.empty() && older_than_us == 0;
  }
};

}  // namespace modcache::store
