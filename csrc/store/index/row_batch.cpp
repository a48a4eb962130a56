// SPDX-License-Identifier: Apache-2.0
#include "store/index/row_batch.h"

#include <utility>

#include "store/segment/location.h"

namespace modcache::store {
namespace {

constexpr std::size_t kRowsOfTransaction = 4096;

}  // namespace

Status RowBatch::add(const Context& context, std::string key, const RecordHead& head,
                     std::uint64_t segment, std::uint64_t offset) {
  NewRow row{};
  row.context = &context;
  row.location = location_of(head, segment, offset);
  row.stored_at_us = head.stored_at_us;
  rows_.push_back(row);
  keys_.push_back(std::move(key));
  return rows_.size() < kRowsOfTransaction ? Status::ok() : commit();
}

Status RowBatch::commit() {
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].key = keys_[i];
  const Status status = index_.commit(rows_).status();
  rows_.clear();
  keys_.clear();
  return status;
}

}  // namespace modcache::store
