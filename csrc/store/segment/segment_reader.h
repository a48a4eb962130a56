// SPDX-License-Identifier: Apache-2.0
//
// SegmentReader: bytes of one segment file. It keeps the file open and holds it (fs/file_system.h),
// so what it has found stays readable, and is counted, after the segment is gone. SegmentReaders
// keeps the readers of a directory.
// Both are thread-safe; a reader may outlive what made it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "fs/file_system.h"
#include "store/directory.h"
#include "store/segment/record.h"
#include "store/store.h"

namespace modcache::store {

class SegmentReader {
 public:
  // kNotFound: no such file. kCorruption: its header is not that of segment `id`.
  static Result<std::shared_ptr<SegmentReader>> open(const Directory& directory, std::uint64_t id,
                                                     ReadVia read_via);
  // The same for a file that is sealed, and may have any name and id.
  static Result<std::shared_ptr<SegmentReader>> open_sealed(fs::FileSystem& file_system,
                                                            const std::string& path,
                                                            ReadVia read_via);

  // kCorruption unless all the bytes are there.
  Status read(std::uint64_t offset, void* target, std::size_t size_bytes) const;

  // The file as it is now: its size, and (ReadVia::kMmap) a mapping of at least that.
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
  // A mapping of at least `end` bytes; the file has `file_size_bytes`.
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

  Result<std::shared_ptr<SegmentReader>> get(std::uint64_t id);
  // From now on get() gives this one.
  void add(std::shared_ptr<SegmentReader> reader);
  // Lets go of segments that are gone: they take disk space as long as somebody has them open.
  void forget_gone();

 private:
  // More than the segments of one budget (a segment is a sixteenth of it, or 256 MiB) as a rule;
  // it bounds the descriptors.
  static constexpr std::size_t kMostReaders = 512;

  const Directory& directory_;
  const ReadVia read_via_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<SegmentReader>> readers_
      MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
