// SPDX-License-Identifier: Apache-2.0
//
// StoreOptions: how a store is opened, and the callbacks that report the work of its own threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "policy/policy.h"

namespace modcache::store {

enum class Durability { kRelaxed, kStrict };  // kStrict: put() returns after power-loss safety
enum class ReadVia { kMmap, kPread };

struct StoreOptions {
  std::string directory;
  std::uint64_t disk_budget_bytes = 100ULL * 1000 * 1000 * 1000;
  Durability durability = Durability::kRelaxed;
  ReadVia read_via = ReadVia::kMmap;
  bool writable = true;    // false: nothing in the directory is created or changed
  bool is_strict = false;  // refuse a directory that everybody may write to, instead of warning
  std::int64_t patience_ms = 500;
  std::int64_t max_age_us = 0;  // older entries are not found, and leave first; 0: no limit
  // Makes the policy that decides which entries leave a full directory and which new ones it takes;
  // policy::make_policy documents the argument. Null: the oldest segments leave first, and every
  // entry is taken.
  std::function<std::unique_ptr<policy::Policy>(void* shared_state)> make_policy;
  // Called from background threads and from evict(): entries that left to make room.
  std::function<void(std::int64_t entries)> on_evicted;
  // Called from the background thread: entries that put() had accepted and that found no room.
  std::function<void(std::int64_t entries)> on_not_kept;
  // Called from open() with kForeign for each thing in the directory that is not a file of ours, if
  // the store works without it or only reads because of it.
  std::function<void(const Status&)> on_foreign_file;
  // Called from the background thread for each write that failed after put() had returned.
  std::function<void(const Status&, std::int64_t entries)> on_write_error;
};

}  // namespace modcache::store
