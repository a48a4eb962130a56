// SPDX-License-Identifier: Apache-2.0
#include "store/segment/tombstone.h"

#include "base/clock.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

NewRecord tombstone_of(const Clear& clear) {
  NewRecord record;
  record.head.kind = RecordKind::kClear;
  record.head.sequence = clear.sequence;
  record.head.context = clear.context;
  record.head.run_us = clear.filter.older_than_us;
  record.head.stored_at_us = now_us();
  record.context = nullptr;
  record.key = clear.filter.key_prefix;
  record.header = clear.filter.scope;
  return record;
}

Clear clear_of(const RecordHead& head, std::string_view scope, std::string_view key_prefix) {
  return {{std::string(scope), std::string(key_prefix), head.run_us}, head.sequence, head.context};
}

Clear clear_of_replaced(const Context& context, std::string_view key, Sequence sequence) {
  return {{context.scope, std::string(key)}, sequence + 1, context.digest};
}

}  // namespace modcache::store
