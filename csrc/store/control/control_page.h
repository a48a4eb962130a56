// SPDX-License-Identifier: Apache-2.0
//
// ControlPage: one mapped page through which the processes of a directory tell each other what
// changed, without a system call. All counters only grow. It can be made anew at any time (its
// makers take the new counters from the database).
//
// Thread-safe. The page is shared memory: a file that somebody cuts short would make a read of it
// fatal, so with ReadVia::kPread it is read by system calls, and next_sequence() looks first.
// That it says which mode the directory has is for directory_mode.h and mode_page.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fs/file_system.h"
#include "store/control/directory_mode.h"
#include "store/store.h"

namespace modcache::store {

inline constexpr std::uint32_t kControlFormatVersion = 1;
inline constexpr std::size_t kControlSizeBytes = 4096;

class ControlPage {
 public:
  // kNotFound: there is none. kCorruption: it is none. kUnsupportedVersion: a newer one.
  static Result<std::unique_ptr<ControlPage>> open(fs::FileSystem& file_system,
                                                   const std::string& path, ReadVia read_via,
                                                   bool is_writable);

  // Writes a page whose first sequence is `next_sequence` in place of whatever was there. The mode
  // stays, if it can be read; who has the old page open is told by its mode.
  // REQUIRES: the directory's lock is held.
  static Status create(fs::FileSystem& file_system, const std::string& path, Sequence next_sequence,
                       std::uint64_t boot = 0);

  // Takes the next `count` numbers, and returns the first of them.
  Result<Sequence> next_sequences(std::uint64_t count);
  Result<Sequence> next_sequence() { return next_sequences(1); }
  // The number that would be given out next: of no record was it ever taken.
  Sequence next() const;
  // Makes sure that the next number is at least `sequence`.
  Status raise_sequence(Sequence sequence);
  // The same where numbers above it may have been given out that nobody knows of any more; survives
  // power loss when it returns. No number was given out twice unless 2^28 were lost.
  Status raise_sequence_beyond_lost(Sequence sequence);

  std::uint64_t removals() const;
  void add_removal();
  std::uint64_t clears() const;
  void add_clear();
  // Set before a commit that may remove or replace, and reset once add_removal() told of it: found
  // set by whoever has the directory's lock next, somebody died in between.
  // REQUIRES of setting it: the directory's lock is held.
  bool is_removal_pending() const;
  void set_removal_pending(bool is_pending);
  // The greatest sequence that was ever committed to the database, or 0 where that is not known. A
  // database that knows less has lost transactions, and with them what was cleared or replaced.
  // REQUIRES, of the two that change it: the directory's lock is held.
  Sequence committed() const;
  void raise_committed(Sequence sequence);
  void set_committed(Sequence sequence);
  // The part of committed() that power loss cannot have taken. `boot` is the present one (boot.h).
  Sequence surely_committed(std::uint64_t boot) const;
  // After a flush: this is on disk, and so is the record that bears it.
  void raise_confirmed(Sequence sequence);
  Sequence confirmed() const;
  // Whether a record of this sequence must not leave the segments without a clear record that bears
  // a greater one: a rebuild would take it, and with it all that was superseded, for lost.
  bool bears_last_sequence(Sequence sequence) const;
  // Whether the machine was started anew since writers last opened the directory.
  bool is_of_earlier_boot(std::uint64_t boot) const;
  void set_boot(std::uint64_t boot);
  // No record with a greater sequence was ever replaced or cleared. Where segments are damaged and
  // the database is lost as well, older ones cannot be believed to be the last of their key.
  Sequence superseded() const;
  void raise_superseded(Sequence sequence);
  // False when the counters cannot be those of a database with this `last_sequence`: the page was
  // damaged, and is to be made anew.
  bool is_plausible(Sequence last_sequence) const;
  // Grows whenever segments are gone, from which others still read: they let go of them. Entries
  // that were evicted are no removals.
  std::uint64_t reclaims() const;
  void add_reclaim();
  // Grows whenever entries are evicted, be it that others need their room.
  std::uint64_t evictions() const;
  void add_eviction();
  // Grows when somebody who makes room needs segments that are not full: writers leave theirs.
  std::uint64_t leave_requests() const;
  void add_leave_request();
  // Another value once the database was replaced.
  std::uint64_t epoch() const;
  void renew_epoch();
  // Which file of the shared index is the one in use (shared_index.h); 0: none.
  // REQUIRES of setting it: the directory's lock is held.
  std::uint64_t index_generation() const;
  void set_index_generation(std::uint64_t generation);

  // kOn where none was set, and for what is no mode.
  DirectoryMode mode() const { return mode_in(mode_word()).value_or(DirectoryMode::kOn); }
  ModeWord mode_word() const;
  // Survives power loss when it returns. REQUIRES: the directory's lock is held.
  Status set_mode(DirectoryMode mode);
  // What is left of the mode of a page that open() refuses.
  static DirectoryMode mode_in_remains(fs::FileSystem& file_system, const std::string& path);
  // The word in the mapped page, for who keeps the mapping.
  const std::atomic<ModeWord>& mapped_mode_word() const;
  const std::shared_ptr<fs::Mapping>& mapping() const { return mapping_; }

  // Which file is mapped.
  const fs::FileInfo& identity() const { return identity_; }

 private:
  using Counter = std::atomic<std::uint64_t>;

  ControlPage(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping,
              ReadVia read_via, const fs::FileInfo& identity);
  Counter& counter(std::size_t offset) const;
  std::uint64_t load(std::size_t offset) const;
  bool is_whole() const;

  const std::unique_ptr<fs::File> file_;
  const std::shared_ptr<fs::Mapping> mapping_;
  const ReadVia read_via_;
  const fs::FileInfo identity_;
};

}  // namespace modcache::store
