// SPDX-License-Identifier: Apache-2.0
//
// MemoryTier: the entries of this process, as one directory has them.
//
// What is held in memory is what the directory would answer, unless some process has removed or
// replaced entries since it was last compared; then it is compared again, entry by entry. Where
// another directory or pack took its place nothing is comparable, and each entry goes. So a process
// never finds in memory what another one has cleared.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/disk_tier.h"
#include "cache/memory_store.h"
#include "cache/place.h"
#include "cache/tier.h"

namespace modcache::cache {

class MemoryTier final : public Tier {
 public:
  // `format` and `places` must outlive the tier. `max_age_s`: entries that were stored longer ago
  // are not found; 0: none is too old.
  MemoryTier(std::shared_ptr<MemoryStore> store, std::shared_ptr<DiskTier> directory,
             const ValueFormat& format, Places& places, std::int64_t max_age_s,
             bool has_directory = true)
      : store_(std::move(store)),
        directory_(std::move(directory)),
        format_(format),
        places_(places),
        max_age_s_(max_age_s),
        has_directory_(has_directory) {}

  Counter hits() const override { return Counter::kHitsMemory; }
  void find(const Keys& keys, Access access, OnMiss on_miss, Found& found) override;
  bool has_room_for(std::uint64_t size_bytes) const override {
    return size_bytes <= store_->budget_bytes();
  }
  // An entry goes to its scope's place. One that is larger than the whole budget is not taken.
  void store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
             OneOrMany<Kept>& kept) override;
  // Where there is no directory: one keeps them for all processes of a machine, and once.
  void store_rows(const Keys& keys, const FoundRows& rows, const std::vector<std::size_t>& which,
                  const std::optional<store::Moment>& since, OneOrMany<Kept>& kept) override;
  void take_back(const Keys& keys, std::span<const Kept> kept) override;
  // An entry in memory was whole when it came: it stays.
  void refuse(const store::EntryId&, store::Sequence, const Status&, Access) override {}
  void drop(const store::EntryId& id, Access access) override;
  void add_sizes(std::map<std::string, std::int64_t>& sizes, bool may_open) override;

 private:
  void drop_outdated(const Keys& keys, HeldEntry* held);
  void compare_with_directory(const Keys& keys, const std::vector<std::size_t>& which,
                              HeldEntry* held, std::vector<MemoryStore::Verdict>& verdicts);
  EntryPtr moved_to_place(const std::string& scope, EntryPtr entry) const;

  const std::shared_ptr<MemoryStore> store_;
  const std::shared_ptr<DiskTier> directory_;
  const ValueFormat& format_;
  Places& places_;
  const std::int64_t max_age_s_;
  const bool has_directory_;
};

}  // namespace modcache::cache
