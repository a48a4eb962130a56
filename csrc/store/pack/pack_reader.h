// SPDX-License-Identifier: Apache-2.0
//
// PackReader: finds entries in a pack, and lists all its records. Opening reads the first and the
// last bytes of the file, whatever its size. Thread-safe; takes no lock and writes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/pack/pack_format.h"
#include "store/segment/location.h"
#include "store/segment/record.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {

class PackReader {
 public:
  // kNotFound: no such file. kInvalidArgument: not a pack. kCorruption: a pack that was damaged or
  // cut short. kUnsupportedVersion: of another version.
  static Result<std::unique_ptr<PackReader>> open(fs::FileSystem& file_system,
                                                  const std::string& path, ReadVia read_via);

  const PackFooter& footer() const { return footer_; }
  // The file as the segment that it begins with.
  const std::shared_ptr<SegmentReader>& records() const { return records_; }

  // Returns the location for read_record(). kNotFound: there is no such entry. kCorruption: the
  // record is damaged, or the page of the table that would name it.
  Result<Location> locate(const EntryId& id) const;

  // A record whose head is intact and that lies before the table.
  using Record = SegmentReader::Record;
  Result<Record> record_at(std::uint64_t offset) const;
  // Returns the payload after checking its checksum; an error when it does not match.
  Result<std::string> payload_of(const Record& record, std::uint64_t offset) const;

  // Returns the offsets of all records, ascending, so that a context comes before its entries.
  // Damaged pages are skipped and counted.
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
