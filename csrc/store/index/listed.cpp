// SPDX-License-Identifier: Apache-2.0
#include "store/index/listed.h"

#include <utility>

#include "store/index/database.h"
#include "store/index/index.h"
#include "store/index/tables.h"

namespace modcache::store {

// Listings are rare, so their statements are not kept.

Result<std::vector<ListedContext>> list_contexts(Index& index) {
  IndexLock tables(index);
  Query query(tables->database(),
              std::string("SELECT c.id, c.digest, c.scope, c.description, t.* FROM contexts c JOIN"
                          " (SELECT count(*), sum(payload_size), sum(") +
                  kRecordBytesSql +
                  "), sum(run_us), min(stored_at_us), max(stored_at_us), context_id FROM entries"
                  " GROUP BY context_id) t ON t.context_id=c.id ORDER BY c.id");
  std::vector<ListedContext> contexts;
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto digest, digest_in(query, 1));
    ListedContext found;
    found.id = query.number(0);
    found.context = {digest, std::string(query.bytes(2)), std::string(query.bytes(3))};
    found.entries = query.number(4);
    found.payload_bytes = query.number(5);
    found.record_bytes = query.number(6);
    found.run_us = query.number(7);
    found.first_stored_at_us = query.number(8);
    found.last_stored_at_us = query.number(9);
    contexts.push_back(std::move(found));
    return Status::ok();
  }));
  return contexts;
}

Result<std::vector<ListedEntry>> list_entries(Index& index, std::int64_t context,
                                              std::string_view from_key, std::size_t limit) {
  IndexLock tables(index);
  Query query(tables->database(),
              "SELECT e.key, s.name, e.offset, e.header_size, e.payload_size, e.sequence, e.run_us,"
              " e.stored_at_us FROM entries e LEFT JOIN segments s ON s.id=e.segment_id"
              " WHERE e.context_id=? AND e.key>=? ORDER BY e.key LIMIT ?");
  query.bind(context).bind_blob(from_key).bind(static_cast<std::int64_t>(limit));
  std::vector<ListedEntry> entries;
  MODCACHE_RETURN_IF_ERROR(query.each([&]() -> Status {
    MODCACHE_ASSIGN_OR_RETURN(auto segment, segment_named(query.bytes(1)));
    ListedEntry found;
    found.key = query.bytes(0);
    found.location.segment = segment;
    found.location.offset = static_cast<std::uint64_t>(query.number(2));
    found.location.header_size_bytes = static_cast<std::uint32_t>(query.number(3));
    found.location.payload_size_bytes = static_cast<std::uint64_t>(query.number(4));
    found.location.sequence = static_cast<Sequence>(query.number(5));
    found.location.run_us = query.number(6);
    found.stored_at_us = query.number(7);
    entries.push_back(std::move(found));
    return Status::ok();
  }));
  return entries;
}

}  // namespace modcache::store
