// SPDX-License-Identifier: Apache-2.0
//
// IndexMapBuilder: makes a new table of the shared index from the database, a part at a time, each
// read on its own: the directory's lock is held for the parts alone, and the log can be emptied
// between them, so that writers of all processes go on.
//
// One thread at a time; the mutex inside is for fork alone. One that is destroyed before the end
// leaves a table that whoever comes next makes anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/directory.h"
#include "store/index/database.h"
#include "store/shared_index/shared_index.h"

namespace modcache::store {

class IndexMapBuilder {
 public:
  // REQUIRES: the directory's lock is held.
  // kNotFound: there is nothing to build, or another process does.
  static Result<std::unique_ptr<IndexMapBuilder>> start(const Directory& directory,
                                                        SharedIndex& index,
                                                        std::int64_t patience_ms);
  ~IndexMapBuilder();
  IndexMapBuilder(const IndexMapBuilder&) = delete;
  IndexMapBuilder& operator=(const IndexMapBuilder&) = delete;

  // Reads the next rows, unless some still wait for add_rows(). No lock of the directory is needed:
  // what changes from start() on is in the table already.
  Status read_rows();
  // Hands on what was read; once there was nothing left to read the table is complete. False: it
  // was put out of use. REQUIRES: the directory's lock is held.
  bool add_rows();

 private:
  explicit IndexMapBuilder(SharedIndex& index);
  Status connect(const Directory& directory, std::int64_t patience_ms);

  SharedIndex& index_;
  std::vector<SharedIndex::Change> rows_;
  bool is_waiting_ = false;  // what was read is not handed on yet
  Mutex mutex_;
  std::uint64_t fork_ticket_;
  std::unique_ptr<Database> database_ MODCACHE_GUARDED_BY(mutex_);
  Statement entries_ MODCACHE_GUARDED_BY(mutex_);
  // Of the last row that was read.
  std::int64_t last_context_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::string last_key_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
