// SPDX-License-Identifier: Apache-2.0
//
// SegmentWriter: appends records to a segment that this process owns (by the lock of the file).
// It goes on with a segment that a former process left unfilled, so that short-lived processes
// do not leave a file each. Files are only ever extended.
//
// Not thread-safe: its owner's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "fs/file_system.h"
#include "store/directory.h"
#include "store/segment/record.h"
#include "store/store.h"

namespace modcache::store {

// What to append; borrowed.
struct NewRecord {
  RecordHead head;         // sizes and checksum of key, header and payload are filled in
  const Context* context;  // declared in the segment before its first entry; null for tombstones
  std::string_view key;
  std::string_view header;
  const void* payload = nullptr;
  std::string_view own_part;  // of the header, where it is not in `header`: written before it
};

struct RecordPlace {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};

class SegmentWriter {
 public:
  // A segment takes up to `segment_limit_bytes`; a record larger than that gets its own.
  SegmentWriter(const Directory& directory, std::uint64_t segment_limit_bytes);
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Appends all, in few large writes. After a failure none may be used; what was written of them
  // is dead space that readers pass over.
  Result<std::vector<RecordPlace>> append(const std::vector<NewRecord>& records);

  // Returns when all that was appended, and the names of the files, survive power loss. A failure
  // is told once: what was appended before may be lost then, whatever a later call returns. The
  // next record begins a new file.
  Status sync();

  // The next record begins a new file; the one so far is given up.
  void leave_segment();

  // Segments that were left stay locked until then: what was appended to them and is not committed
  // yet would pass for dead space. To be called once all that was appended is committed, or given
  // up.
  void release_left();

  // 0: none at present.
  std::uint64_t segment() const { return active_.file == nullptr ? 0 : active_.id; }

 private:
  struct Active {
    std::unique_ptr<fs::File> file;  // locked
    std::uint64_t id = 0;
    std::uint64_t salt = 0;
    std::uint64_t tail = 0;
    bool is_dirty = false;
    bool is_torn = false;  // a write broke off, and what it left could not be cut off
    std::unordered_set<Digest128, Digest128Hash> declared;
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
  std::vector<Left> left_;  // locked, until release_left()
  std::vector<std::unique_ptr<fs::File>> left_dirty_;
  bool has_new_name_ = false;
  Status failed_sync_;  // of release_left(), until sync() tells it
};

}  // namespace modcache::store
