// SPDX-License-Identifier: Apache-2.0
//
// SegmentReader: reads one segment file. It keeps the file open and holds it (fs/file_system.h), so
// that found entries stay readable after the segment is retired, and its size still counts.
// SegmentReaders keeps the readers of a directory.
// Both are thread-safe; a SegmentReader may outlive the SegmentReaders that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/file_system.h"
#include "store/directory/directory.h"
#include "store/entry/options.h"
#include "store/segment/record.h"

namespace modcache::store {

// Reads the header of a file of segments. Errors: as decode_segment_header().
Result<SegmentHeader> read_segment_header(const fs::File& file);

class SegmentReader {
 public:
  // kNotFound: no such file. kCorruption: its header is not that of segment `id`.
  static Result<std::shared_ptr<SegmentReader>> open(const Directory& directory, std::uint64_t id,
                                                     ReadVia read_via);
  // Does the same for a sealed file, which may have any name and id.
  static Result<std::shared_ptr<SegmentReader>> open_sealed(fs::FileSystem& file_system,
                                                            const std::string& path,
                                                            ReadVia read_via);

  // Returns kCorruption unless all the bytes are there.
  Status read(std::uint64_t offset, void* target, std::size_t size_bytes) const;

  // Maps a copy of the bytes (fs/file_system.h); null: they have to be read. REQUIRES: the file has
  // them.
  std::shared_ptr<fs::Mapping> map_copy(std::uint64_t offset, std::size_t size_bytes) const;

  // A hint: these bytes will be read soon. Does not wait until they are in memory.
  void expect(std::uint64_t offset, std::uint64_t size_bytes) const {
    file_->expect(offset, size_bytes);
  }

  // A record whose head is intact.
  struct Record {
    RecordHead head;
    std::string key;
    std::string header;
  };
  // kCorruption: no record begins there, or its head is damaged.
  Result<Record> read_record(std::uint64_t offset) const;
  // Fills head.payload_size_bytes bytes at `target`. kCorruption: they fail their checksum.
  Status read_payload(std::uint64_t offset, const RecordHead& head, void* target) const;

  // The file at this moment: its size, and (ReadVia::kMmap) a mapping of at least that size.
  struct View {
    std::shared_ptr<fs::Mapping> mapping;
    std::uint64_t size_bytes = 0;
  };
  Result<View> view() const;

  Result<std::uint64_t> size_bytes() const;
  std::uint64_t id() const { return header_.id; }
  std::uint64_t salt() const { return header_.salt; }

 private:
  SegmentReader(std::unique_ptr<fs::File> file, const SegmentHeader& header, ReadVia read_via);
  // Returns a mapping of at least `end` bytes. `file_size_bytes` is the size of the file.
  Result<std::shared_ptr<fs::Mapping>> mapping_up_to(std::uint64_t end,
                                                     std::uint64_t file_size_bytes) const;

  const std::unique_ptr<fs::File> file_;
  const SegmentHeader header_;
  const ReadVia read_via_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<fs::Mapping> mapping_ MODCACHE_GUARDED_BY(mutex_);
};

class SegmentReaders {
 public:
  SegmentReaders(const Directory& directory, ReadVia read_via);

  // Returns the reader of a segment, opening it if necessary. Errors are those of
  // SegmentReader::open().
  Result<std::shared_ptr<SegmentReader>> get(std::uint64_t id);
  // Makes get() return this one from now on.
  void add(std::shared_ptr<SegmentReader> reader);
  // Lets go of retired segments, which take disk space as long as somebody has them open.
  void forget_retired();

 private:
  // Bounds the descriptors. It usually exceeds the number of segments of one budget, as a segment
  // is a sixteenth of it, or 256 MiB.
  static constexpr std::size_t kMostReaders = 512;

  const Directory& directory_;
  const ReadVia read_via_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<SegmentReader>> readers_
      MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
