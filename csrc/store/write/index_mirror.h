// SPDX-License-Identifier: Apache-2.0
//
// IndexMirror: keeps the shared index (shared_index.h) as the database is. It makes the table where
// one is missing, and repeats there what was changed in the database. A failure costs time and
// nothing else: the database answers then.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "store/attached/attached_directory.h"
#include "store/commit/committer.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/index/clearing.h"
#include "store/index/index.h"
#include "store/shared_index/index_map_builder.h"
#include "store/usage/usage_tracker.h"

namespace modcache::store {

class IndexMirror {
 public:
  // All of them must outlive it.
  IndexMirror(AttachedDirectory& attached, Committer& committer, UsageTracker& usage)
      : attached_(attached), committer_(committer), usage_(usage) {}
  IndexMirror(const IndexMirror&) = delete;
  IndexMirror& operator=(const IndexMirror&) = delete;

  // Makes what can be made at once, in a directory that takes `used_bytes`. REQUIRES: no other
  // thread uses the shared index yet.
  void prepare(std::uint64_t used_bytes);

  // For the thread that writes: makes one part of the table, or begins a new one. Others write
  // between two parts.
  void build_part();
  bool is_building() const { return builder_ != nullptr; }

  // Each ends a change that SharedIndex::begin() began. REQUIRES: the committer's mutex and the
  // directory's lock are held. `taken`: for each row the sequence that it replaced, or none if the
  // row was not taken.
  void commit(const std::vector<NewRow>& rows, const std::vector<std::optional<Sequence>>& taken);
  void clear(const Clear& clear, const RemovedRows& removed);

 private:
  using Clock = std::chrono::steady_clock;

  AttachedDirectory& attached_;
  Committer& committer_;
  UsageTracker& usage_;
  std::unique_ptr<IndexMapBuilder> builder_;  // null: no table is being made here
  Clock::time_point next_build_;
  Clock::duration build_pause_{};
};

}  // namespace modcache::store
