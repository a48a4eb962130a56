// SPDX-License-Identifier: Apache-2.0
//
// Admission: whether there is room for what is put. Thread-safe.
#pragma once

#include <cstdint>

#include "store/attached/attached_directory.h"
#include "store/entry/entry_id.h"
#include "store/reclaim/disk_budget.h"
#include "store/reclaim/room_requests.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class Admission {
 public:
  enum class Room { kNone, kFree, kOfOthers };  // kOfOthers: others leave for it

  // All of them must outlive it.
  Admission(AttachedDirectory& attached, DiskBudget& budget, UsageTracker& usage,
            RoomRequests& requests)
      : attached_(attached), budget_(budget), usage_(usage), requests_(requests) {}

  // Room for an entry that will take `size_bytes` on disk, beside `taken_bytes` that are not
  // written yet. Asks for more room before there is none.
  Room room_for(const EntryId& id, bool replaces, std::uint64_t size_bytes,
                std::uint64_t taken_bytes);

 private:
  bool may_have_one(const EntryId& id);

  AttachedDirectory& attached_;
  DiskBudget& budget_;
  UsageTracker& usage_;
  RoomRequests& requests_;
};

}  // namespace modcache::store
