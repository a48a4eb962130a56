// SPDX-License-Identifier: Apache-2.0
//
// Packs: all that a directory holds, sealed in one file that ships beside a model. Store::open()
// takes such a file in the place of a directory (pack_store.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/store.h"
#include "store/verify/verify.h"

namespace modcache::store {

struct PackSummary {
  std::int64_t entries = 0;   // that were written
  std::int64_t there = 0;     // unpacking: that the directory had already, and kept
  std::int64_t broken = 0;    // that were passed over, being damaged
  std::int64_t not_kept = 0;  // unpacking: for which the directory had no room
  std::int64_t notes = 0;
  std::uint64_t payload_bytes = 0;  // of the entries that were written
};

// Told now and then how far it is, by the calling thread. `of_entries` is about right.
using OnPackProgress = std::function<void(const PackSummary& so_far, std::int64_t of_entries)>;

// Writes what `filter` names of the entries that the directory has into `file`, in place of a pack
// or an empty file that was there; others may use the directory meanwhile. What they store while
// this runs is in the pack or not. The file appears whole and safe against power loss, or not at
// all. Of a filter that names nothing that can be packed (`entries` is 0) nothing is written; a
// directory without entries makes a pack without any. Notes travel with it: all, or of a scope its
// manifest and those that name it; those about files of this machine stay.
//
// kNotFound: no such directory. kInvalidArgument: something else is there. kBusy: somebody else is
// writing this file.
//
// REQUIRES: this process opens no Store on the directory meanwhile (listing.h reads it as those do
// who may not write, and SQLite cannot have both in one process).
Result<PackSummary> write_pack(fs::FileSystem& file_system, const std::string& directory,
                               const std::string& file, const ClearFilter& filter = {},
                               const OnPackProgress& on_progress = {});

// Puts what the pack holds into the directory `into` names, which is made where there is none.
// Entries and notes that it has stay. All that was put is safe when this returns; what is
// interrupted can be done again. Nothing leaves to make room: what the budget of `into` does not
// suffice for is not kept, and counted. The policy of `into` is not asked.
Result<PackSummary> unpack_into(fs::FileSystem& file_system, const std::string& file,
                                StoreOptions into, const OnPackProgress& on_progress = {});

// Reads everything in the pack that options.directory names, as verify_directory() does.
// kInvalidArgument: no pack. kCorruption: damaged as a whole.
Result<Verification> verify_pack(fs::FileSystem& file_system, const VerifyOptions& options);

}  // namespace modcache::store
