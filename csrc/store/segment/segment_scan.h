// SPDX-License-Identifier: Apache-2.0
//
// Reading a segment from its beginning to its end, without an index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/segment/record.h"
#include "store/segment/segment_reader.h"
#include "store/store.h"

namespace modcache::store {

// Told of each record whose head is intact, in the order of the file. A failure ends the scan.
class SegmentVisitor {
 public:
  virtual ~SegmentVisitor() = default;
  virtual Status on_context(const RecordHead& head, std::string_view scope,
                            std::string description) = 0;
  virtual Status on_entry(const RecordHead& head, std::uint64_t offset, std::string_view key) = 0;
  virtual Status on_clear(const RecordHead& head, std::string_view scope,
                          std::string_view key_prefix) = 0;
  // Where a record should begin at `offset`, none does: damage, or what power loss left. A record
  // that the file ends in is none: so a process that dies leaves it.
  virtual void on_gap(std::uint64_t offset) { (void)offset; }
};

// Passes over what is no record: where one should begin and none does, the next is looked for at
// each multiple of 64 bytes, also within the one before, which a dying process may have left
// half-written. Payloads of entries are not read. kIoError: the file cannot be read.
Status scan_segment(const SegmentReader& reader, SegmentVisitor& visitor);

// Bytes that no record begins in or reaches to.
struct SegmentGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
// In the order of the file; records within the space that another claims are not looked for.
Result<std::vector<SegmentGap>> gaps_of(const SegmentReader& reader);

// Whether records follow one another up to the end of the file. False: somebody died while writing
// there, or bytes are damaged.
Result<bool> ends_with_a_record(const SegmentReader& reader);

// The greatest number that was given out for an entry or a clear among the records that follow one
// another from `offset` on, where one begins. 0: there is none. `with_payloads`: they are read, and
// the first that fails its checksum is kCorruption.
Result<Sequence> last_sequence_from(const SegmentReader& reader, std::uint64_t offset,
                                    bool with_payloads);

}  // namespace modcache::store
