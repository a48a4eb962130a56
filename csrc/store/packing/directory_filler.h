// SPDX-License-Identifier: Apache-2.0
//
// DirectoryFiller: puts many entries that come from elsewhere into a directory. Entries that the
// directory has stay, and none leaves to make room: what does not fit the budget is not stored, and
// counted. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "fs/file_system.h"
#include "store/entry/entry_id.h"
#include "store/entry/options.h"
#include "store/entry/put.h"
#include "store/store.h"

namespace modcache::store {

struct FillSummary {
  std::int64_t entries = 0;         // stored
  std::int64_t there = 0;           // the directory had them already, and kept its own
  std::int64_t not_kept = 0;        // the directory had no room for them
  std::uint64_t payload_bytes = 0;  // of the entries that were taken
};

class DirectoryFiller {
 public:
  // Creates the directory where it is missing. The policy of `into` is not asked. kIoError: the
  // directory can only be read.
  static Result<std::unique_ptr<DirectoryFiller>> open(fs::FileSystem& file_system,
                                                       StoreOptions into);
  ~DirectoryFiller();

  // Takes those that the directory lacks. Waits while its queue is full.
  Status put(const Context& context, std::vector<RowPut> puts);

  // Returns the numbers so far. Entries that find no room are counted as stored until finish().
  const FillSummary& so_far() const { return summary_; }

  // Waits until everything that was taken is safe. Fails with the first failure of a write.
  Result<FillSummary> finish();

  // The store, for notes.
  Store& store() { return *store_; }

 private:
  struct Writing;
  DirectoryFiller(std::shared_ptr<Writing> writing, std::unique_ptr<Store> store);
  Status put_all(const Context& context, std::vector<RowPut> puts);

  const std::shared_ptr<Writing> writing_;
  const std::unique_ptr<Store> store_;
  FillSummary summary_;
};

}  // namespace modcache::store
