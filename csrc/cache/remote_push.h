// SPDX-License-Identifier: Apache-2.0
//
// push_entries(): writes the entries of a directory or pack to the server of a remote tier, as they
// are stored: payloads and headers are not decoded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "cache/remote_bulk.h"
#include "fs/file_system.h"
#include "store/listing/listing.h"
#include "store/store.h"

namespace modcache::cache {

struct PushSummary {
  std::int64_t entries = 0;         // written; of a dry run: they would be
  std::int64_t there = 0;           // the server had them already, as new or newer
  std::int64_t cleared = 0;         // older than the last clear of the server lets them be
  std::int64_t broken = 0;          // damaged in the directory
  std::int64_t failed = 0;          // the server did not take them
  std::uint64_t payload_bytes = 0;  // of the entries that were written
  Status failure;                   // the first refusal of the server, or why it ended early

  std::int64_t seen() const { return entries + there + cleared + broken + failed; }
};

// Called now and then by the calling thread. `of_entries` is approximate.
using OnPushProgress = std::function<void(const PushSummary& so_far, std::int64_t of_entries)>;

// A directory or pack that is only read.
class PushSource {
 public:
  // Errors are those of store::Listing::open().
  static Result<PushSource> open(fs::FileSystem& file_system, const std::string& directory);

  store::Listing& listing() const { return *listing_; }
  store::Store& store() const { return *store_; }

 private:
  std::unique_ptr<store::Listing> listing_;
  std::unique_ptr<store::Store> store_;
};

// Writes the entries that `filter` covers and the server lacks, with their contexts. Others may use
// both meanwhile. An interrupted or failed push can be repeated, and goes on where it ended. `dry`:
// nothing is written, not even a mark.
//
// The server has an entry if there is one under its address of the same context, in the generation
// that counts, stored at the same time or later. For that the beginnings of records are read, and
// nothing of their content is verified: what is damaged there is found by who reads it.
//
// Errors concern the directory. What the server does is in the summary.
Result<PushSummary> push_entries(const PushSource& source, RemoteBulk& server,
                                 const MoveFilter& filter, bool dry = false,
                                 const OnPushProgress& on_progress = {});

}  // namespace modcache::cache
