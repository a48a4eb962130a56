// SPDX-License-Identifier: Apache-2.0
//
// The list of tiers, and the one place where they are made: a new tier gets a line in tiers.cpp.
#pragma once

#include <memory>
#include <vector>

#include "cache/disk_tier.h"
#include "cache/memory_store.h"
#include "cache/place.h"
#include "cache/remote_tier.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "cache/tier.h"
#include "cache/value.h"
#include "fs/file_system.h"
#include "store/counters/directory_counters.h"

namespace modcache::cache {

// The parts that tiers are made with. The referents must outlive them.
struct TierParts {
  const ValueFormat& format;
  Stats& stats;
  Places& places;
  std::shared_ptr<StoreHandle> store;  // of the directory of the settings
  // They belong to the directory; null: none are kept.
  store::DirectoryCounters* counters = nullptr;
  fs::FileSystem& file_system;
  ConnectRemote connect_remote = connect_by_library;
};

struct Tiers {
  std::vector<std::shared_ptr<Tier>> nearest_first;
  // The same by name: what is not a matter of looking up and storing asks these.
  std::shared_ptr<MemoryStore> memory;
  std::shared_ptr<DiskTier> disk;
  std::shared_ptr<RemoteTier> remote;  // null: there is none
};

Tiers make_tiers(const Settings& settings, const TierParts& parts);
// The same for settings that were changed: tiers that the change leaves as they are keep what they
// hold and have open. A memory tier mirrors its directory, so another directory starts with an
// empty one.
Tiers make_tiers(const Settings& settings, const TierParts& parts, const Settings& settings_before,
                 const Tiers& before);

// The same but for the memory tier, which is another one and holds nothing.
Tiers with_empty_memory(const Settings& settings, const TierParts& parts, const Tiers& before);

}  // namespace modcache::cache
