// SPDX-License-Identifier: Apache-2.0
//
// DiskFiles: the files of a cache directory by what they are for (FORMAT.md), as their names say.
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
    kGoneSegment,  // removed, and still read by somebody
    kSharedIndex,  // with what policies know
    kControl,
    kLock,
    kNote,
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
  // One that vanishes meanwhile is left out. A pack is one segment.
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
