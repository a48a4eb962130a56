// SPDX-License-Identifier: Apache-2.0
//
// ControlPage: one mapped page through which the processes of a directory tell each other what
// changed, without a system call. All counters only grow. It can be made anew at any time (its
// makers take the new counters from the database).
//
// Thread-safe. The page is shared memory: a file that somebody cuts short would make a read of it
// fatal, so with ReadVia::kPread it is read by system calls, and next_sequence() looks first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fs/file_system.h"
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

  // Writes a page whose first sequence is `next_sequence` in place of whatever was there.
  // REQUIRES: the directory's lock is held.
  static Status create(fs::FileSystem& file_system, const std::string& path,
                       Sequence next_sequence);

  // Takes the next `count` numbers, and returns the first of them.
  Result<Sequence> next_sequences(std::uint64_t count);
  Result<Sequence> next_sequence() { return next_sequences(1); }
  // Makes sure that the next number is at least `sequence`.
  Status raise_sequence(Sequence sequence);

  std::uint64_t removals() const;
  void add_removal();
  std::uint64_t clears() const;
  void add_clear();
  // Another value once the database was replaced.
  std::uint64_t epoch() const;
  void renew_epoch();

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
