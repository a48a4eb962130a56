// SPDX-License-Identifier: Apache-2.0
//
// DiskFiles: the files of a cache directory by purpose (FORMAT.md), which their names tell.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace modcache::command_line {

struct DiskFile {
  enum class Kind {
    kDatabase,  // with its log and its shared memory
    kSegment,
    kRetiredSegment,  // a retired segment: removed, but somebody still reads it
    kSharedIndex,     // with the state of policies
    kControl,
    kLock,
    kNote,
    kCounters,
    kInTheMaking,
    kUnknown,
  };

  Kind kind = Kind::kUnknown;
  std::string name;  // relative to the directory
  std::int64_t size_bytes = 0;
  std::int64_t modified_us = 0;  // since 1970
  bool is_writable = false;
};

class DiskFiles {
 public:
  // Lists the files, without those that vanish meanwhile. A pack counts as one segment.
  static Result<DiskFiles> list(const std::string& directory);

  struct Total {
    std::int64_t count = 0;
    std::int64_t size_bytes = 0;
  };
  Total total(DiskFile::Kind kind) const;
  std::int64_t size_bytes() const;
  const std::vector<DiskFile>& files() const { return files_; }

 private:
  std::vector<DiskFile> files_;
};

}  // namespace modcache::command_line
