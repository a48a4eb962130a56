// SPDX-License-Identifier: Apache-2.0
//
// Packing: seals the contents of a directory in one file that ships beside a model, and puts them
// back into a directory. Store::open() accepts such a file in place of a directory (pack_store.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"

namespace modcache::store {

struct PackSummary {
  std::int64_t entries = 0;   // written
  std::int64_t there = 0;     // unpacking: the directory had them already, and kept its own
  std::int64_t broken = 0;    // skipped because they were damaged
  std::int64_t not_kept = 0;  // unpacking: the directory had no room for them
  std::int64_t notes = 0;
  std::uint64_t payload_bytes = 0;  // of the entries that were written
};

// Called now and then by the calling thread. `of_entries` is approximate.
using OnPackProgress = std::function<void(const PackSummary& so_far, std::int64_t of_entries)>;

// Writes the directory's entries that `filter` covers, and notes, into `file`, replacing a pack or
// an empty file. Others may use the directory meanwhile; what they store then may be in the pack or
// not. The file appears complete and safe against power loss, or not at all. When a filter covers
// nothing that can be packed (`entries` is 0) nothing is written; a directory without entries makes
// an empty pack. All notes are packed, or, for a scope, its manifest and those that name it; notes
// about files of this machine are not.
//
// kNotFound: no such directory. kInvalidArgument: something else is at `file`. kBusy: another
// process is writing this file.
//
// REQUIRES: this process opens no Store on the directory meanwhile. (Listing reads it as a process
// without write access does, and SQLite cannot have both in one process.)
Result<PackSummary> write_pack(fs::FileSystem& file_system, const std::string& directory,
                               const std::string& file, const ClearFilter& filter = {},
                               const OnPackProgress& on_progress = {});

// Puts the contents of the pack into the directory `into`, which is created where it is missing.
// Entries and notes that the directory has stay. Everything is safe when this returns, and an
// interrupted call can be repeated. No entry leaves to make room: entries that do not fit the
// budget of `into` are not stored, and counted. The policy of `into` is not asked.
Result<PackSummary> unpack_into(fs::FileSystem& file_system, const std::string& file,
                                StoreOptions into, const OnPackProgress& on_progress = {});

}  // namespace modcache::store
