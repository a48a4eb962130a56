// SPDX-License-Identifier: Apache-2.0
//
// FoundEntries: what Store::find_all() found, key by key in the order of the question. It owns
// what keeps the bytes readable (mappings, open files, queued puts), so it may outlive the Store
// and the entries may be cleared or replaced meanwhile. Movable.
//
// Threads: read() and verified_bytes() may run in several threads at once for different entries;
// the object itself belongs to one thread.
//
// The files' sizes were looked at by find_all() and are not asked for again: read soon. (With
// ReadVia::kMmap a file that somebody cuts short between the two kills the process.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/one_or_many.h"
#include "base/result.h"
#include "base/status.h"
#include "store/entry/entry_id.h"
#include "store/entry/own_part.h"
#include "store/entry/put.h"

namespace modcache::fs {
class Mapping;
}

namespace modcache::store {

class LocationMap;
class SegmentReader;
struct QueuedPut;

class FoundEntries {
 public:
  FoundEntries() = default;
  // Remembers for the process what read() verified; see note_verified().
  ~FoundEntries() { note_verified(); }
  FoundEntries(FoundEntries&& other) noexcept = default;
  FoundEntries& operator=(FoundEntries&& other) noexcept;

  std::size_t size() const { return rows_.size(); }

  // False: not there, or broken, or it could not be asked for; failures() and index_status() tell.
  bool has(std::size_t i) const { return rows_[i].sequence != 0; }

  // REQUIRES of all that follow: has(i).
  // Without the own part.
  const SharedHeader& header(std::size_t i) const { return headers_[rows_[i].header]; }
  // header(i) is headers()[header_index(i)]: what is made from a header is made once for each.
  std::size_t header_index(std::size_t i) const { return rows_[i].header; }
  // The own part of the header, as the file has it now: it was checked when the process first met
  // the record. Valid as long as this object.
  std::string_view own(std::size_t i) const { return {rows_[i].own, rows_[i].own_size_bytes()}; }
  // The header as its record has it, own part and all.
  std::string whole_header(std::size_t i) const { return own_part_of(own(i)) + *header(i); }
  std::size_t payload_size_bytes(std::size_t i) const { return rows_[i].payload_size_bytes; }
  Sequence sequence(std::size_t i) const { return rows_[i].sequence; }
  std::int64_t run_us(std::size_t i) const { return rows_[i].run_us; }

  std::int64_t stored_at_us(std::size_t i) const { return rows_[i].stored_at_us; }

  // The next read() of this entry checks its checksum, also where this process has verified the
  // record before: the file may have been damaged since.
  void verify_again(std::size_t i) {
    Row& row = rows_[i];
    if (row.is_verified && !row.is_newly_verified) row.was_verified = true;
    row.is_newly_verified = false;
    row.is_verified = row.is_queued;
  }

  // Fills payload_size_bytes(i) bytes at `target`, and checks the checksum of that copy unless
  // this process verified the record before. kCorruption or kIoError: what lies at `target` must
  // not be used.
  Status read(std::size_t i, void* target) const;

  // Does the same without copying: the payload in memory of the caller's own, of which a page is
  // copied when somebody writes to it. It outlives this object, and keeps the disk space of its
  // segment taken. Null: it must be read().
  Result<std::shared_ptr<std::byte>> map_copy(std::size_t i) const;

  // The payload itself, valid as long as this object: mapped bytes that this process has verified,
  // or those of a queued put. Null: it must be read().
  const std::byte* verified_bytes(std::size_t i) const {
    const Row& row = rows_[i];
    return row.is_verified ? row.payload : nullptr;
  }

  const std::vector<SharedHeader>& headers() const { return headers_; }

  // Entries that the index names and that could not be had: kCorruption when what lies there is
  // not they, otherwise the file system's failure. At most one for a key, in ascending order.
  struct Failure {
    std::size_t i = 0;
    Sequence sequence = 0;  // that the index has
    Status status;
  };
  const std::vector<Failure>& failures() const { return failures_; }

  // If it is not ok, the index failed, and entries that were not found may be there.
  const Status& index_status() const { return index_status_; }

  // The payload with what keeps it, of an entry of ReceivedRows; of others without an owner.
  SharedBytes received_payload(std::size_t i) const;

  // Appends the rows of `other`, whose row i becomes row size() + i. Its failures are dropped.
  void append(FoundEntries other);

  // The next find_all() knows what read() verified so far: one lock for all.
  void note_verified();

 private:
  friend class BatchLookup;
  friend class ReceivedRows;

  struct Row {
    const std::byte* payload = nullptr;  // null: in the file, to be read by system calls
    std::uint64_t payload_offset = 0;    // in its segment
    std::uint64_t payload_size_bytes = 0;
    std::uint64_t payload_checksum = 0;
    Sequence sequence = 0;  // 0: not found
    std::int64_t run_us = 0;
    std::int64_t stored_at_us = 0;
    std::uint32_t header = 0;
    std::uint32_t segment = 0;  // of a row that was received: its owner's place in kept_
    bool is_verified = false;
    bool was_verified = false;  // by this process, which knows that already
    bool is_newly_verified = false;
    bool is_queued = false;  // as a put of this process, or received: not in a segment
    bool is_received = false;
    std::uint8_t own_part_bytes = 0;
    const char* own = nullptr;

    std::size_t own_size_bytes() const {
      return own == nullptr ? 0 : own_part_bytes - kOwnPrefixBytes;
    }
  };
  struct Segment {
    std::uint64_t id = 0;
    std::shared_ptr<SegmentReader> reader;
    std::shared_ptr<fs::Mapping> mapping;  // null: read by system calls
    std::uint64_t size_bytes = 0;
  };

  static Status verify(Row& row, const void* bytes);

  OneOrMany<Digest128> addresses_;
  mutable OneOrMany<Row> rows_;  // read() notes what it verified
  std::vector<SharedHeader> headers_;
  std::vector<Segment> segments_;
  // Queued puts, mappings that were outgrown, and own parts that were read by system calls.
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<Failure> failures_;
  Status index_status_;
  std::shared_ptr<LocationMap> locations_;
  std::uint64_t fork_generation_ = modcache::fork_generation();
};

}  // namespace modcache::store
