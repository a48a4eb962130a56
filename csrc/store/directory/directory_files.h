// SPDX-License-Identifier: Apache-2.0
//
// Checks the names and kinds of a directory's files without opening any. Whoever can write to a
// directory can replace a file of ours by a link, a pipe or a device. The file system refuses to
// open those (fs/file_system.h); this decides what that means for the directory.
//
// Called by a process that is about to open a directory, without a lock. A file that is replaced
// afterwards is refused when it is opened.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "store/directory/directory.h"

namespace modcache::store {

struct ForeignFile {
  enum class Use {
    kNeeded,   // the directory cannot be used
    kWritten,  // the directory can only be read: the file has other names, or another owner
    kSpared,   // the directory is used without the file, or with a new one
    kRead,     // as kWritten, but writers do without the file; readers read it
  };
  Use use = Use::kNeeded;
  std::string name;  // below the directory
  Status status;     // kForeign; the message has path and kind
};

struct DirectoryFiles {
  std::vector<ForeignFile> foreign;
  bool is_written_by_all = false;  // everybody on the machine may write to the directory
  bool is_own = true;              // this user owns the directory itself

  // Returns the status of the first foreign file of this use; ok when there is none.
  Status first(ForeignFile::Use use) const;
};

DirectoryFiles look_at_files(const Directory& directory);

}  // namespace modcache::store
