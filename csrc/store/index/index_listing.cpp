// SPDX-License-Identifier: Apache-2.0
//
// The questions of Listing. They are asked rarely, so their statements are not kept.
#include <map>
#include <utility>

#include "store/index/index.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

// The size of a record, as RecordHead gives it.
std::string sum_of_records() {
  const auto aligned = [](const std::string& size) {
    const std::string alignment = std::to_string(kRecordAlignmentBytes);
    return "(" + size + "+" + alignment + "-1)/" + alignment + "*" + alignment;
  };
  return "sum(" + aligned(std::to_string(kRecordFixedSizeBytes) + "+length(key)+header_size") +
         "+" + aligned("payload_size") + ")";
}

ListedContext context_in(const Query& query) {
  ListedContext found;
  found.id = query.number(0);
  found.context.digest = Digest128::from_bytes(query.bytes(1));
  found.context.scope = query.bytes(2);
  found.context.description = query.bytes(3);
  found.entries = query.number(4);
  found.payload_bytes = query.number(5);
  found.record_bytes = query.number(6);
  found.run_us = query.number(7);
  found.first_stored_at_us = query.number(8);
  found.last_stored_at_us = query.number(9);
  return found;
}

ListedEntry entry_in(const Query& query) {
  ListedEntry found;
  found.key = query.bytes(0);
  found.offset = static_cast<std::uint64_t>(query.number(2));
  found.header_size_bytes = static_cast<std::uint32_t>(query.number(3));
  found.payload_size_bytes = static_cast<std::uint64_t>(query.number(4));
  found.sequence = static_cast<Sequence>(query.number(5));
  found.run_us = query.number(6);
  found.stored_at_us = query.number(7);
  return found;
}

}  // namespace

Result<std::vector<ListedContext>> Index::contexts() {
  MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT c.id, c.digest, c.scope, c.description, t.* FROM contexts c JOIN (SELECT count(*),"
      " sum(payload_size), " +
      sum_of_records() +
      ", sum(run_us), min(stored_at_us), max(stored_at_us), context_id FROM entries"
      " GROUP BY context_id) t ON t.context_id=c.id ORDER BY c.id");
  if (!statement.is_ok()) return statement.status();
  std::vector<ListedContext> contexts;
  Query query(statement.value());
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return contexts;
    if (query.bytes(1).size() != 16) return Status::corruption("a context without a digest");
    contexts.push_back(context_in(query));
  }
}

Result<std::vector<ListedEntry>> Index::page(std::int64_t context, std::string_view from_key,
                                             std::size_t limit) {
  MutexLock lock(mutex_);
  auto transaction = ReadTransaction::begin(*database_);
  if (!transaction.is_ok()) return transaction.status();
  auto statement = database_->prepare(
      "SELECT key, segment_id, offset, header_size, payload_size, sequence, run_us, stored_at_us"
      " FROM entries WHERE context_id=? AND key>=? ORDER BY key LIMIT ?");
  if (!statement.is_ok()) return statement.status();
  std::map<std::int64_t, std::uint64_t> segments;  // by the database's number
  std::vector<ListedEntry> entries;
  Query query(statement.value());
  query.bind(context).bind_blob(from_key).bind(static_cast<std::int64_t>(limit));
  while (true) {
    auto has_row = query.step();
    if (!has_row.is_ok()) return has_row.status();
    if (!has_row.value()) return entries;
    entries.push_back(entry_in(query));
    const auto [segment, is_new] = segments.emplace(query.number(1), 0);
    if (is_new) {
      auto found = segment_of(segment->first);
      if (!found.is_ok()) return found.status();
      segment->second = found.value();
    }
    entries.back().segment = segment->second;
  }
}

}  // namespace modcache::store
