// SPDX-License-Identifier: Apache-2.0
//
// pull_entries(): puts the entries that lie on the server of a remote tier into a directory, as
// they are stored there: payloads and headers are not decoded.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "cache/remote_bulk.h"
#include "fs/file_system.h"
#include "store/entry/options.h"

namespace modcache::cache {

struct PullSummary {
  std::int64_t entries = 0;   // put into the directory
  std::int64_t there = 0;     // the directory had them already, and kept its own
  std::int64_t not_kept = 0;  // the directory had no room for them
  // The next four were left out.
  std::int64_t damaged = 0;         // a seal, a size, a name or a header does not fit
  std::int64_t cleared = 0;         // it was stored before a clear
  std::int64_t no_context = 0;      // the server has lost what it is an entry of
  std::int64_t foreign = 0;         // no entry, or one of a newer modcache
  std::uint64_t payload_bytes = 0;  // of the entries that were put
  Status failure;                   // why it ended early: the server failed

  std::int64_t seen() const {
    return entries + there + not_kept + damaged + cleared + no_context + foreign;
  }
};

// Called now and then by the calling thread.
using OnPullProgress = std::function<void(const PullSummary& so_far)>;

// Visits all entries on the server, verifies each, and puts those that `filter` covers and the
// directory lacks into it. The directory is created where it is missing; nothing leaves it to make
// room. Others may use both meanwhile; what is stored then may come along or not. An interrupted or
// failed pull can be repeated.
//
// Errors concern the directory. What the server does is in the summary.
Result<PullSummary> pull_entries(fs::FileSystem& file_system, RemoteBulk& server,
                                 store::StoreOptions into, const MoveFilter& filter,
                                 const OnPullProgress& on_progress = {});

}  // namespace modcache::cache
