// SPDX-License-Identifier: Apache-2.0
//
// SegmentWriter: appends records to a segment that this process owns through the file's lock. It
// continues a segment that another process left unfilled, so that short-lived processes do not
// leave a file each. Files are only ever extended.
//
// Not thread-safe: its owner's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"

namespace modcache::store {

// A record to append; borrowed.
struct NewRecord {
  RecordHead head;         // the sizes and checksums are filled in
  const Context* context;  // declared in the segment before its first entry; null for tombstones
  std::string_view key;
  std::string_view header;
  const void* payload = nullptr;
  std::string_view own_part;  // the part of the header that is written before `header`
};

// Makes the record that declares a context, which it borrows from.
NewRecord declaration_of(const Context& context, Sequence sequence);

struct RecordPlace {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};

class SegmentWriter {
 public:
  // A segment takes up to `segment_limit_bytes`; a larger record gets a segment of its own.
  SegmentWriter(const Directory& directory, std::uint64_t segment_limit_bytes);
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Appends all records, in few large writes. After an error none of them may be used: the bytes
  // that were written are dead space, which readers skip.
  Result<std::vector<RecordPlace>> append(const std::vector<NewRecord>& records);

  // Returns once everything that was appended, and the names of the files, survive power loss. An
  // error is reported once: records that were appended before may be lost then, whatever a later
  // call returns. The next record begins a new file.
  Status sync();

  // Gives up the current segment, so that the next record begins a new file.
  void leave_segment();

  // Unlocks the segments that were left. They stay locked until then, as records in them that are
  // not committed yet would pass for dead space. Call it once all appended records are committed or
  // given up.
  void release_left();

  // The current segment; 0: none.
  std::uint64_t segment() const { return active_.file == nullptr ? 0 : active_.id; }

 private:
  struct Active {
    std::unique_ptr<fs::File> file;  // locked
    std::uint64_t id = 0;
    std::uint64_t salt = 0;
    std::uint64_t tail = 0;
    bool is_dirty = false;
    bool is_torn = false;  // a write was cut off, and its bytes could not be removed
    std::unordered_set<Digest128, Digest128Hash> declared{};
  };
  class Batch;

  Status sync_files();
  void leave_lost_segment();
  Result<std::vector<RecordPlace>> append_all(const std::vector<NewRecord>& records);
  bool has_room(std::uint64_t pending_bytes, std::uint64_t needed_bytes) const;
  Status make_room(std::uint64_t size_bytes);
  bool adopt_segment();
  bool adopt(std::uint64_t id);
  Status create_segment();

  const Directory& directory_;
  const std::uint64_t segment_limit_bytes_;
  Active active_;
  struct Left {
    std::unique_ptr<fs::File> file;
    bool is_dirty = false;
  };
  std::vector<Left> left_;  // locked until release_left()
  std::vector<std::unique_ptr<fs::File>> left_dirty_;
  bool has_new_name_ = false;
  Status failed_sync_;  // from release_left(), until sync() reports it
};

}  // namespace modcache::store
