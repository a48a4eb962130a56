// SPDX-License-Identifier: Apache-2.0
//
// PackReader: where in a pack an entry lies, and all that lies there. Opening reads the first and
// the last bytes of the file, however large it is. Thread-safe; takes no lock and writes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/index/index.h"
#include "store/pack/pack_format.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

class PackReader {
 public:
  // kNotFound: no such file. kInvalidArgument: no pack. kCorruption: one that was damaged or cut
  // short. kUnsupportedVersion: a newer one.
  static Result<std::unique_ptr<PackReader>> open(fs::FileSystem& file_system,
                                                  const std::string& path, ReadVia read_via);

  const PackFooter& footer() const { return footer_; }
  // The file, as the segment that it begins with.
  const std::shared_ptr<SegmentReader>& records() const { return records_; }

  // What read_record() needs to know of the entry. kNotFound: it is not there. kCorruption: the
  // record, or the page of the table that would name it, is damaged.
  Result<Location> locate(const EntryId& id) const;

  // A record whose head is sound and that lies before the table.
  struct Record {
    RecordHead head;
    std::string key;
    std::string header;
  };
  Result<Record> record_at(std::uint64_t offset) const;
  // Fails unless its checksum is right.
  Result<std::string> payload_of(const Record& record, std::uint64_t offset) const;

  // The offsets of all records, ascending: a context comes before its entries. Pages that are
  // damaged are passed over and counted.
  struct Offsets {
    std::vector<std::uint64_t> all;
    std::int64_t broken_pages = 0;
  };
  Result<Offsets> offsets() const;

 private:
  PackReader(std::shared_ptr<SegmentReader> records, const PackFooter& footer);
  // Calls visit(offset) for each record that may have this address, until it returns true.
  Status visit_slots(const Digest128& address,
                     const std::function<bool(std::uint64_t offset)>& visit) const;
  Status read_page(std::uint64_t number, std::string& page) const;

  const std::shared_ptr<SegmentReader> records_;
  const PackFooter footer_;
};

}  // namespace modcache::store
