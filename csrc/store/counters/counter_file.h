// SPDX-License-Identifier: Apache-2.0
//
// CounterFile: the file in which one process counts for a directory (FORMAT.md). It is mapped, so
// counting is an addition in memory, and what was counted outlives the process however it ends.
//
// The file is held (fs::File::try_hold) while this process or one that it forked has it mapped: a
// file that nobody holds belongs to processes that ended. Forked processes count in the file of
// their parent.
//
// Thread-safe, and safe among the processes that share the mapping.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/counters/counted_day.h"
#include "store/directory/directory.h"

namespace modcache::store {

inline constexpr std::size_t kCounterFileBytes = 16384;
inline constexpr std::size_t kCounterSlotBytes = 512;
inline constexpr std::size_t kCounterSlots = kCounterFileBytes / kCounterSlotBytes - 1;

// The counters of one scope on one day.
using CounterSlot = std::array<std::atomic<std::int64_t>, kMostCounters>;
static_assert(sizeof(CounterSlot) == kMostCounters * sizeof(std::int64_t));

class CounterFile {
 public:
  // Makes a file in the directory's folder of counters. It appears there complete and held.
  // kNotFound: the directory itself is gone.
  static Result<std::unique_ptr<CounterFile>> create(const Directory& directory);

  // Returns the slot of this scope and day, after taking one where there is none. Null: all slots
  // are others'. It lives as long as this object.
  CounterSlot* slot_of(std::string_view scope, std::int32_t day);

  // Returns whether the file still stands in the directory. Takes a system call.
  bool is_in_place() const;

 private:
  CounterFile(fs::FileSystem& file_system, std::string path, const fs::FileInfo& identity,
              std::shared_ptr<fs::Mapping> mapping)
      : file_system_(file_system),
        path_(std::move(path)),
        identity_(identity),
        mapping_(std::move(mapping)) {}

  std::byte* slot_at(std::size_t i) const { return mapping_->data() + (i + 1) * kCounterSlotBytes; }

  fs::FileSystem& file_system_;
  const std::string path_;
  const fs::FileInfo identity_;
  const std::shared_ptr<fs::Mapping> mapping_;
};

// The contents of such a file. Nothing in it is believed before it was checked: what is damaged is
// left out.
struct ReadCounters {
  std::uint64_t id = 0;
  std::int64_t created_us = 0;
  std::uint64_t process = 0;     // that made it; has one file or more
  std::vector<CountedDay> days;  // a pair of scope and day may be there twice
};
// kCorruption: it is no such file. kUnsupportedVersion: it is of another version.
Result<ReadCounters> read_counter_file(const fs::File& file);

// "00c0ffee00c0ffee.counts".
std::string counter_file_name(std::uint64_t id);
bool is_counter_file_name(const std::string& name);

}  // namespace modcache::store
