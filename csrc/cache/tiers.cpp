// SPDX-License-Identifier: Apache-2.0
#include "cache/tiers.h"

#include <utility>

#include "cache/memory_tier.h"

namespace modcache::cache {
namespace {

Tiers in_order(const Settings& settings, const TierParts& parts,
               std::shared_ptr<MemoryStore> memory, std::shared_ptr<DiskTier> disk,
               std::shared_ptr<RemoteTier> remote) {
  Tiers tiers;
  tiers.nearest_first.push_back(std::make_shared<MemoryTier>(
      memory, disk, parts.format, parts.places, settings.max_age_s, settings.disk_bytes > 0));
  tiers.nearest_first.push_back(disk);
  if (remote != nullptr) {
    remote->comes_after(disk);
    tiers.nearest_first.push_back(remote);
  }
  tiers.memory = std::move(memory);
  tiers.disk = std::move(disk);
  tiers.remote = std::move(remote);
  return tiers;
}

std::shared_ptr<MemoryStore> make_memory(const Settings& settings, const TierParts& parts) {
  auto memory = std::make_shared<MemoryStore>(settings.memory_bytes, settings.policy, parts.stats);
  memory->set_max_age(settings.max_age_s);
  return memory;
}

std::shared_ptr<DiskTier> make_disk(const Settings& settings, const TierParts& parts) {
  return std::make_shared<DiskTier>(settings, parts.format, parts.stats, parts.store,
                                    parts.file_system, parts.counters);
}

std::shared_ptr<RemoteTier> make_remote(const Settings& settings, const TierParts& parts) {
  if (settings.remote.empty()) return nullptr;
  return std::make_shared<RemoteTier>(settings, parts.format, parts.stats, parts.connect_remote);
}

bool use_one_server(const Settings& one, const Settings& other) {
  return one.remote == other.remote && one.remote_timeout_ms == other.remote_timeout_ms &&
         one.remote_ttl_s == other.remote_ttl_s && one.name_space == other.name_space &&
         one.max_age_s == other.max_age_s;
}

bool use_one_store(const Settings& one, const Settings& other) {
  return one.dir == other.dir && one.disk_bytes == other.disk_bytes &&
         one.max_age_s == other.max_age_s && one.durability == other.durability &&
         one.io == other.io && one.codec == other.codec && one.policy == other.policy;
}

}  // namespace

Tiers make_tiers(const Settings& settings, const TierParts& parts) {
  return in_order(settings, parts, make_memory(settings, parts), make_disk(settings, parts),
                  make_remote(settings, parts));
}

Tiers make_tiers(const Settings& settings, const TierParts& parts, const Settings& settings_before,
                 const Tiers& before) {
  const bool is_same_store =
      use_one_store(settings, settings_before) && before.disk->store_handle() == parts.store;
  auto disk = is_same_store ? before.disk : make_disk(settings, parts);
  auto remote =
      use_one_server(settings, settings_before) ? before.remote : make_remote(settings, parts);
  if (settings.dir != settings_before.dir) {
    return in_order(settings, parts, make_memory(settings, parts), std::move(disk),
                    std::move(remote));
  }
  before.memory->set_policy(settings.policy);
  before.memory->set_max_age(settings.max_age_s);
  before.memory->set_budget(settings.memory_bytes);
  return in_order(settings, parts, before.memory, std::move(disk), std::move(remote));
}

Tiers with_empty_memory(const Settings& settings, const TierParts& parts, const Tiers& before) {
  return in_order(settings, parts, make_memory(settings, parts), before.disk, before.remote);
}

}  // namespace modcache::cache
