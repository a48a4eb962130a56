// SPDX-License-Identifier: Apache-2.0
//
// Victim: a segment that is being emptied. It has the segment's lock, so nobody appends to it, and
// knows where its records begin. Reading it needs no other lock. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/directory/directory.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

class Victim {
 public:
  // Locks the segment and scans it; one whose header is damaged has no records. kBusy: somebody
  // writes there. kNotFound: it is gone. kUnsupportedVersion: it is of another version.
  static Result<std::unique_ptr<Victim>> take(const Directory& directory, std::uint64_t id);

  std::uint64_t id() const { return id_; }

  struct Record {
    RecordHead head;
    std::uint64_t offset = 0;
    const Context* context = nullptr;  // lives as long as the victim
    std::string key;
    std::string header;
  };
  // The next records of kind entry, `most` of them and some megabytes at most; empty at the end.
  // Those whose context is not declared are passed over: no index leads to them.
  Result<std::vector<Record>> next(std::size_t most);
  // kCorruption: the payload fails its checksum.
  Status read_payload(const Record& record, std::string& payload) const {
    payload.resize(record.head.payload_size_bytes);
    return reader_->read_payload(record.offset, record.head, payload.data());
  }

  struct ClearRecord {
    RecordHead head;
    std::string scope;
    std::string key_prefix;
  };
  const std::vector<ClearRecord>& clears() const { return clears_; }
  // There may have been records that could not be read.
  bool is_damaged() const { return is_damaged_; }

 private:
  class Scan;

  Victim(std::uint64_t id, std::unique_ptr<fs::File> locked)
      : id_(id), locked_(std::move(locked)) {}

  const std::uint64_t id_;
  const std::unique_ptr<fs::File> locked_;
  std::shared_ptr<SegmentReader> reader_;  // null: damaged
  std::vector<std::uint64_t> entries_;     // where they begin
  std::size_t next_ = 0;
  std::unordered_map<Digest128, Context, Digest128Hash> contexts_;
  std::vector<ClearRecord> clears_;
  bool is_damaged_ = false;
};

}  // namespace modcache::store
