// SPDX-License-Identifier: Apache-2.0
//
// IndexMapBuilder: makes a new table of the shared index from the database, in parts that are read
// one by one. The directory's lock is held during each part only, and the log can be emptied in
// between, so that writers of all processes continue.
//
// For one thread at a time; the mutex inside is for fork alone. A builder that is destroyed before
// the end leaves an incomplete table, which another process makes anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "store/directory/directory.h"
#include "store/index/database.h"
#include "store/shared_index/shared_index.h"

namespace modcache::store {

class IndexMapBuilder {
 public:
  // REQUIRES: the directory's lock is held. kNotFound: there is nothing to build, or another
  // process builds it.
  static Result<std::unique_ptr<IndexMapBuilder>> start(const Directory& directory,
                                                        SharedIndex& index,
                                                        std::int64_t patience_ms);
  ~IndexMapBuilder();
  IndexMapBuilder(const IndexMapBuilder&) = delete;
  IndexMapBuilder& operator=(const IndexMapBuilder&) = delete;

  // Reads the next rows, unless some still wait for add_rows(). Needs no lock of the directory, as
  // the table gets all changes from start() on.
  Status read_rows();
  // Adds the rows that were read; when there was nothing left to read the table is complete.
  // Returns false when the table was put out of use. REQUIRES: the directory's lock is held.
  bool add_rows();

 private:
  explicit IndexMapBuilder(SharedIndex& index);
  Status connect(const Directory& directory, std::int64_t patience_ms);

  SharedIndex& index_;
  std::vector<SharedIndex::Change> rows_;
  bool is_waiting_ = false;  // rows were read and not added yet
  Mutex mutex_;
  std::uint64_t fork_registration_;
  std::unique_ptr<Database> database_ MODCACHE_GUARDED_BY(mutex_);
  Statement entries_ MODCACHE_GUARDED_BY(mutex_);
  // The position after the last row that was read.
  std::int64_t last_context_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::string last_key_ MODCACHE_GUARDED_BY(mutex_);
};

}  // namespace modcache::store
