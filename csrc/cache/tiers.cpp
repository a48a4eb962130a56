// SPDX-License-Identifier: Apache-2.0
#include "cache/tiers.h"

#include <utility>

#include "cache/memory_tier.h"

namespace modcache::cache {
namespace {

Tiers in_order(const Settings& settings, const TierParts& parts,
               std::shared_ptr<MemoryStore> memory, std::shared_ptr<DiskTier> disk) {
  Tiers tiers;
  tiers.nearest_first.push_back(
      std::make_shared<MemoryTier>(memory, disk, parts.format, parts.places, settings.max_age_s));
  tiers.nearest_first.push_back(disk);
  tiers.memory = std::move(memory);
  tiers.disk = std::move(disk);
  return tiers;
}

std::shared_ptr<MemoryStore> make_memory(const Settings& settings, const TierParts& parts) {
  auto memory = std::make_shared<MemoryStore>(settings.memory_bytes, settings.policy, parts.stats);
  memory->set_max_age(settings.max_age_s);
  return memory;
}

std::shared_ptr<DiskTier> make_disk(const Settings& settings, const TierParts& parts) {
  return std::make_shared<DiskTier>(settings, parts.format, parts.stats, parts.file_system,
                                    parts.counters);
}

bool use_one_store(const Settings& one, const Settings& other) {
  return one.dir == other.dir && one.disk_bytes == other.disk_bytes &&
         one.max_age_s == other.max_age_s && one.durability == other.durability &&
         one.io == other.io && one.codec == other.codec && one.policy == other.policy;
}

}  // namespace

Tiers make_tiers(const Settings& settings, const TierParts& parts) {
  return in_order(settings, parts, make_memory(settings, parts), make_disk(settings, parts));
}

Tiers make_tiers(const Settings& settings, const TierParts& parts, const Settings& settings_before,
                 const Tiers& before) {
  auto disk = use_one_store(settings, settings_before) ? before.disk : make_disk(settings, parts);
  if (settings.dir != settings_before.dir) {
    return in_order(settings, parts, make_memory(settings, parts), std::move(disk));
  }
  before.memory->set_policy(settings.policy);
  before.memory->set_max_age(settings.max_age_s);
  before.memory->set_budget(settings.memory_bytes);
  return in_order(settings, parts, before.memory, std::move(disk));
}

Tiers with_empty_memory(const Settings& settings, const TierParts& parts, const Tiers& before) {
  return in_order(settings, parts, make_memory(settings, parts), before.disk);
}

}  // namespace modcache::cache
