// SPDX-License-Identifier: Apache-2.0
//
// ControlPage: one mapped page through which the processes of a directory tell each other about
// changes, without a system call. All counters only grow. The page can be recreated at any time,
// with counters from the database.
//
// Thread-safe. The page is shared memory, and reading a mapped file that somebody cut short would
// kill the process. So with ReadVia::kPread the page is read by system calls, and next_sequence()
// checks the file first.
// The page also holds the mode of the directory, for directory_mode.h and mode_page.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/control/directory_mode.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"

namespace modcache::store {

inline constexpr std::uint32_t kControlFormatVersion = 2;
inline constexpr std::size_t kControlSizeBytes = 4096;

class ControlPage {
 public:
  // kNotFound: there is no page. kCorruption: the file is not a page. kUnsupportedVersion: it is of
  // another version.
  static Result<std::unique_ptr<ControlPage>> open(fs::FileSystem& file_system,
                                                   const std::string& path, ReadVia read_via,
                                                   bool is_writable);

  // Replaces whatever is at `path` by a page whose first sequence is `next_sequence`. Keeps the
  // mode if it can be read. Processes that have the old page open learn it from the mode in there.
  // REQUIRES: the directory's lock is held.
  static Status create(fs::FileSystem& file_system, const std::string& path, Sequence next_sequence,
                       std::uint64_t boot = 0);

  // Takes the next `count` sequences, and returns the first of them.
  Result<Sequence> next_sequences(std::uint64_t count);
  Result<Sequence> next_sequence() { return next_sequences(1); }
  // Returns the sequence that would be taken next, which no record has.
  Sequence next() const { return load(kNextSequenceOffset); }
  // Raises the next sequence to at least `sequence`.
  Status raise_sequence(Sequence sequence);
  // Does the same where greater sequences may have been taken that nobody knows of any more;
  // survives power loss on return. No sequence is taken twice unless 2^28 were lost.
  Status raise_sequence_beyond_lost(Sequence sequence);

  std::uint64_t removals() const { return load(kRemovalsOffset); }
  void add_removal() { add_one(kRemovalsOffset); }
  std::uint64_t clears() const { return load(kClearsOffset); }
  void add_clear() { add_one(kClearsOffset); }
  // Set before a commit that may remove or replace entries, and reset after add_removal(). When the
  // next owner of the directory's lock finds it set, a process died in between.
  // REQUIRES for setting it: the directory's lock is held.
  bool is_removal_pending() const { return load(kRemovalPendingOffset) != 0; }
  void set_removal_pending(bool is_pending) { store(kRemovalPendingOffset, is_pending ? 1 : 0); }
  // The greatest sequence that was ever committed to the database; 0 where that is not known. A
  // database with a smaller one has lost transactions, and with them the removal of entries.
  // REQUIRES for both that change it: the directory's lock is held.
  Sequence committed() const { return load(kCommittedOffset); }
  void raise_committed(Sequence sequence) { raise(kCommittedOffset, sequence); }
  void set_committed(Sequence sequence) { store(kCommittedOffset, sequence); }
  // Returns the part of committed() that no power loss can have undone. `boot` is the current one
  // (boot.h).
  Sequence surely_committed(std::uint64_t boot) const;
  // Call it after a flush: this sequence and its record are on disk.
  void raise_confirmed(Sequence sequence) { raise(kConfirmedOffset, sequence); }
  Sequence confirmed() const { return load(kConfirmedOffset); }
  // Returns whether the record of this sequence must not leave the segments without a clear record
  // with a greater sequence. A rebuild would otherwise miss the last sequence, and treat everything
  // up to superseded() as lost.
  bool bears_last_sequence(Sequence sequence) const;
  // Returns whether the machine was restarted since a writer last opened the directory.
  bool is_of_earlier_boot(std::uint64_t boot) const;
  void set_boot(std::uint64_t boot) {
    if (boot != 0) store(kBootOffset, boot);
  }
  // Records with a greater sequence were never replaced or cleared. When segments are damaged and
  // the database is lost as well, older records cannot be trusted to be the latest of their keys.
  Sequence superseded() const { return load(kSupersededOffset); }
  void raise_superseded(Sequence sequence) { raise(kSupersededOffset, sequence); }
  // Returns false when the counters do not fit a database with this `last_sequence`. The page was
  // then damaged, and has to be recreated.
  bool is_plausible(Sequence last_sequence) const;
  // Grows whenever segments are retired, so that processes which still read them let go of them.
  // Evicted entries do not count as removals.
  std::uint64_t reclaims() const { return load(kReclaimsOffset); }
  void add_reclaim() { add_one(kReclaimsOffset); }
  // Grows whenever entries are evicted, so that others learn whether there may be room for theirs.
  std::uint64_t evictions() const { return load(kEvictionsOffset); }
  void add_eviction() { add_one(kEvictionsOffset); }
  // Grows when a process that makes room needs segments that are not full: writers then leave
  // theirs.
  std::uint64_t leave_requests() const { return load(kLeaveRequestsOffset); }
  void add_leave_request() { add_one(kLeaveRequestsOffset); }
  // Changes when the database is replaced.
  std::uint64_t epoch() const { return load(kEpochOffset); }
  void renew_epoch() { add_one(kEpochOffset); }
  // The file of the shared index that is in use (shared_index.h); 0: none.
  // REQUIRES for setting it: the directory's lock is held.
  std::uint64_t index_generation() const { return load(kIndexGenerationOffset); }
  void set_index_generation(std::uint64_t generation) { store(kIndexGenerationOffset, generation); }

  // kOn where no mode was set, and for a value that is not a mode.
  DirectoryMode mode() const { return mode_in(mode_word()).value_or(DirectoryMode::kOn); }
  ModeWord mode_word() const;
  // Survives power loss on return. REQUIRES: the directory's lock is held.
  Status set_mode(DirectoryMode mode);
  // Returns the mode of a page that open() refuses, as far as it can be read.
  static DirectoryMode mode_in_remains(fs::FileSystem& file_system, const std::string& path);
  // The word in the mapped page, for callers that keep the mapping.
  const std::atomic<ModeWord>& mapped_mode_word() const;
  const std::shared_ptr<fs::Mapping>& mapping() const { return mapping_; }

  // Identifies the mapped file.
  const fs::FileInfo& identity() const { return identity_; }

 private:
  using Counter = std::atomic<std::uint64_t>;

  // Each hot counter has its own cache line: every call of every process reads `removals`.
  static constexpr std::size_t kNextSequenceOffset = 64;
  static constexpr std::size_t kRemovalsOffset = 128;
  static constexpr std::size_t kClearsOffset = 192;
  static constexpr std::size_t kEpochOffset = 256;
  static constexpr std::size_t kCommittedOffset = 384;
  static constexpr std::size_t kSupersededOffset = 392;
  static constexpr std::size_t kConfirmedOffset = 400;
  static constexpr std::size_t kBootOffset = 408;
  static constexpr std::size_t kRemovalPendingOffset = 416;
  static constexpr std::size_t kReclaimsOffset = 448;
  static constexpr std::size_t kEvictionsOffset = 456;
  static constexpr std::size_t kIndexGenerationOffset = 512;
  static constexpr std::size_t kLeaveRequestsOffset = 576;

  ControlPage(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping,
              ReadVia read_via, const fs::FileInfo& identity);
  Counter& counter(std::size_t offset) const;
  std::uint64_t load(std::size_t offset) const;
  // Writing to a page that somebody cut short would kill the process, so nothing is changed there.
  void add_one(std::size_t offset);
  void store(std::size_t offset, std::uint64_t number);
  void raise(std::size_t offset, std::uint64_t number);
  bool is_whole() const;
  Status check_whole() const;

  const std::unique_ptr<fs::File> file_;
  const std::shared_ptr<fs::Mapping> mapping_;
  const ReadVia read_via_;
  const fs::FileInfo identity_;
};

}  // namespace modcache::store
