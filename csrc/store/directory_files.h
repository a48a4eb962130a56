// SPDX-License-Identifier: Apache-2.0
//
// What stands in a directory, by names and kinds alone: no file is opened. Whoever can write in a
// directory can put a link, a pipe or a device where a file of ours was. The file system refuses to
// open those (fs/file_system.h); here it is decided what that means for the directory.
//
// Who may call it: whoever is about to open a directory, without a lock. What is put there
// afterwards is refused when it is opened.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "store/directory.h"

namespace modcache::store {

struct ForeignFile {
  enum class Use {
    kNeeded,   // the directory cannot be used
    kWritten,  // the directory can only be read: the file has other names, or is another user's
    kSpared,   // the directory is used without it, or with one that is made anew
    kRead,     // spared, for the same reason as kWritten, by who writes: who only reads, reads it
  };
  Use use = Use::kNeeded;
  std::string name;  // below the directory
  Status status;     // kForeign; the message has path and kind
};

struct DirectoryFiles {
  std::vector<ForeignFile> foreign;
  // Own files that give more rights than their folder does, as version 0.2.0 made them.
  std::vector<std::string> too_open;
  bool is_written_by_all = false;  // everybody on the machine may write in the directory
  bool is_own = true;              // the directory itself is this user's

  // The first that is foreign in this way; ok: none is.
  Status first(ForeignFile::Use use) const;
};

DirectoryFiles look_at_files(const Directory& directory);

}  // namespace modcache::store
