// SPDX-License-Identifier: Apache-2.0
//
// Reads a segment from beginning to end, without an index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/entry/entry_id.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

// Gets each record whose head is intact, in the order of the file. An error ends the scan.
class SegmentVisitor {
 public:
  virtual ~SegmentVisitor() = default;
  virtual Status on_context(const RecordHead& head, std::string_view scope,
                            std::string description) = 0;
  virtual Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) = 0;
  virtual Status on_clear(const RecordHead& head, std::string_view scope,
                          std::string_view key_prefix) = 0;
  // There is no record at `offset` where one should begin: damage, or the effect of power loss. Not
  // called for an incomplete record at the end of the file, as a process that dies leaves one.
  virtual void on_gap(std::uint64_t offset) { (void)offset; }
};

// Skips bytes that are not records: where one should begin and does not, the next is searched at
// each multiple of 64 bytes, also within the previous record, which a dying process may have left
// half-written. Does not read the payloads of entries. kIoError: the file cannot be read.
Status scan_segment(const SegmentReader& reader, SegmentVisitor& visitor);

// A range of bytes that belong to no record.
struct SegmentGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
// Returns the gaps in the order of the file. Does not search for records within the space of
// another record.
Result<std::vector<SegmentGap>> gaps_of(const SegmentReader& reader);

// Returns whether the file consists of consecutive records up to its end. If not, a process died
// while writing, or bytes are damaged.
Result<bool> ends_with_a_record(const SegmentReader& reader);

// Returns the greatest sequence of an entry or a clear among the consecutive records from `offset`
// on, where a record begins; 0 when there is none. With `with_payloads` it reads them, too, and
// returns kCorruption at the first that fails its checksum.
Result<Sequence> last_sequence_from(const SegmentReader& reader, std::uint64_t offset,
                                    bool with_payloads);

}  // namespace modcache::store
