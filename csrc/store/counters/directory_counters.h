// SPDX-License-Identifier: Apache-2.0
//
// DirectoryCounters: counting for one directory, by scope and day, so that the numbers outlive this
// process. Counting is an addition in mapped memory, and takes no system call, lock or thread once
// a thread has counted for the scope before; but about once a second it looks for its file.
//
// Whoever opened the directory for writing attaches; until then, and after the directory went away,
// what is counted waits in memory. Thread-safe. A forked child goes on in the file of its parent.
// Nothing here fails: what cannot be kept is lost.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "fs/file_system.h"
#include "store/counters/counted_day.h"
#include "store/counters/counter_file.h"

namespace modcache::store {

class DirectoryCounters {
 public:
  struct Addition {
    std::size_t counter;
    std::int64_t amount;
  };

  // Opens nothing. `file_system` must outlive this object.
  DirectoryCounters(fs::FileSystem& file_system, std::string directory);
  ~DirectoryCounters();
  DirectoryCounters(const DirectoryCounters&) = delete;
  DirectoryCounters& operator=(const DirectoryCounters&) = delete;

  // `who` stands for the scope in the memory of threads: the same for the same scope, though a
  // scope may have many.
  void add(const Digest128& who, std::string_view scope, std::span<const Addition> additions);
  void add(std::string_view scope, std::span<const Addition> additions);

  // The directory is open for writing: counts in a file there from now on, the one in use if it
  // still is there. Also gathers the files of processes that ended, where there are many. False:
  // no file can be made there now, and counts wait.
  bool attach();
  // The directory went away, or is another by now.
  void detach();

  bool has_waiting_counts();
  // For a forked child: they wait in its parent, too, which is the one to write them.
  void drop_waiting_counts();

 private:
  // Where this process counts for a scope: in a file, or in memory while there is none.
  CounterSlot& slot_of(const Digest128& who, std::string_view scope);
  CounterSlot& find_slot(std::string_view scope) MODCACHE_REQUIRES(mutex_);
  CounterSlot* slot_in_files_in_use(std::string_view scope, std::int32_t day)
      MODCACHE_REQUIRES(mutex_);
  CounterSlot* slot_in_file(std::string_view scope) MODCACHE_REQUIRES(mutex_);
  bool open_file() MODCACHE_REQUIRES(mutex_);
  void use_new_file() MODCACHE_REQUIRES(mutex_);
  bool may_open_another() const MODCACHE_REQUIRES(mutex_);
  void move_waiting_counts() MODCACHE_REQUIRES(mutex_);
  // Slots that threads remember are asked for anew.
  void forget_slots();
  // Looks whether another day has begun, and now and then whether the file still is there.
  void look_around();
  void look_at_file();

  // A process whose scopes fill more files within an hour counts the rest as kOtherScopes.
  static constexpr std::size_t kMostFiles = 16;
  static constexpr std::int64_t kHourUs = 3'600'000'000;
  static constexpr std::int64_t kTryAgainAfterUs = 1'000'000;
  static constexpr std::int64_t kLookAgainAfterUs = 1'000'000;

  fs::FileSystem& file_system_;
  const std::string directory_;
  // Unique among all objects of the process, and after each change of where to count.
  std::atomic<std::uint64_t> generation_;
  std::atomic<std::int32_t> day_;
  std::atomic<std::int64_t> looked_at_us_;  // at the file

  Mutex mutex_;
  bool is_attached_ MODCACHE_GUARDED_BY(mutex_) = false;
  // All that were ever used, as threads may be counting in them.
  std::vector<std::unique_ptr<CounterFile>> files_ MODCACHE_GUARDED_BY(mutex_);
  // The first of the files that still are in the directory.
  std::size_t first_in_use_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::int64_t opened_us_ MODCACHE_GUARDED_BY(mutex_) = 0;           // the last one
  std::int64_t failed_us_ MODCACHE_GUARDED_BY(mutex_) = 0;           // when none could be made
  CounterSlot* other_scopes_ MODCACHE_GUARDED_BY(mutex_) = nullptr;  // in there
  // They hold what was counted while there was no file, and stay, as threads may use them.
  std::map<std::string, std::unique_ptr<CounterSlot>, std::less<>> waiting_
      MODCACHE_GUARDED_BY(mutex_);
  std::uint64_t fork_registration_;
};

}  // namespace modcache::store
