// SPDX-License-Identifier: Apache-2.0
//
// RowBatch: adds rows of records to an index, many in one transaction. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/entry/entry_id.h"
#include "store/index/index.h"
#include "store/segment/record.h"

namespace modcache::store {

class RowBatch {
 public:
  // `index` must outlive it.
  explicit RowBatch(Index& index) : index_(index) {}

  // Adds the row of the entry with this head, and commits once there are many. `context` must live
  // until then.
  Status add(const Context& context, std::string key, const RecordHead& head, std::uint64_t segment,
             std::uint64_t offset);
  // Commits what was added since.
  Status commit();

 private:
  Index& index_;
  std::vector<NewRow> rows_;
  std::vector<std::string> keys_;
};

}  // namespace modcache::store
