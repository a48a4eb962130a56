// SPDX-License-Identifier: Apache-2.0
//
// Lookup: what a store answers to find_all() and its like. It asks, in this order, the queue of
// puts, the records that this process remembers, the index that all processes share, and the
// database. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/entry/entry_id.h"
#include "store/entry/put.h"
#include "store/found/batch_lookup.h"
#include "store/found/found_entries.h"
#include "store/found/location_map.h"
#include "store/queue/outdated_entries.h"
#include "store/queue/write_queue.h"
#include "store/segment/location.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class Lookup {
 public:
  // All of them must outlive it.
  Lookup(AttachedDirectory& attached, Committer& committer, WriteQueue& queue,
         const OutdatedEntries& outdated, UsageTracker& usage)
      : attached_(attached),
        committer_(committer),
        queue_(queue),
        outdated_(outdated),
        usage_(usage) {}
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  // See store.h.
  FoundEntries find_all(const EntryIds& ids);
  std::vector<bool> are_current(const EntryIds& ids, const std::vector<Sequence>& sequences);
  std::vector<Sequence> sequences(const EntryIds& ids);
  std::size_t expect(const EntryIds& ids, std::uint64_t most_bytes);

  bool was_cleared_since(const Moment& moment, const Context& context, std::string_view key);

  // The one copy of this header (LocationMap::intern).
  SharedHeader intern(std::string_view header) { return locations_->intern(header); }

 private:
  bool was_cleared(const QueuedPut& put);
  bool is_still_there(const Digest128& address, std::uint64_t segment, std::uint64_t offset,
                      Sequence sequence) const;
  // The first two return the keys of which only the database can tell.
  std::vector<std::size_t> take_shared(std::vector<std::size_t> missing, BatchLookup& batch);
  // The sequences of ids, 0 for those that are not there. Of records that this process knows it
  // believes those that `is_believed` says, by place and sequence; the index tells of the others.
  std::vector<Sequence> current_sequences(
      const EntryIds& ids, const std::function<bool(std::size_t, Sequence)>& is_believed);
  std::vector<std::size_t> take_current(std::span<const Digest128> addresses,
                                        const std::vector<std::size_t>& unknown,
                                        std::vector<Sequence>& current);
  void take_from_index(const EntryIds& ids, const std::vector<std::size_t>& missing,
                       BatchLookup& batch);
  void take_again(const EntryId& id, std::size_t i, Location failed, Status failure,
                  BatchLookup& batch);

  AttachedDirectory& attached_;
  Committer& committer_;
  WriteQueue& queue_;
  const OutdatedEntries& outdated_;
  UsageTracker& usage_;
  const std::shared_ptr<LocationMap> locations_ = std::make_shared<LocationMap>();
  const LocationMap::IsStillThere is_still_there_ =
      [this](const Digest128& address, std::uint64_t segment, std::uint64_t offset,
             Sequence sequence) { return is_still_there(address, segment, offset, sequence); };
};

}  // namespace modcache::store
