// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <utility>

namespace modcache::store {

FoundEntries Store::find_all(const Context& context, const std::vector<std::string_view>& keys) {
  const OneOrMany<Digest128> addresses = addresses_of(context.digest, keys);
  return find_all({context, keys, addresses});
}

std::vector<bool> Store::are_current(const Context& context,
                                     const std::vector<std::string_view>& keys,
                                     const std::vector<Sequence>& sequences) {
  const OneOrMany<Digest128> addresses = addresses_of(context.digest, keys);
  return are_current({context, keys, addresses}, sequences);
}

Result<std::unique_ptr<FoundEntry>> Store::find(const EntryId& id) {
  return FoundEntry::of_one(find_all(batch_of(id)));
}

bool Store::is_current(const EntryId& id, Sequence sequence) {
  return are_current(batch_of(id), {sequence}).front();
}

Status Store::put_all(const Context& context, const std::vector<RowPut>& puts,
                      std::vector<Sequence>& sequences) {
  std::vector<Digest128> addresses;
  addresses.reserve(puts.size());
  for (const RowPut& put : puts) addresses.push_back(address_of(context.digest, put.key));
  return put_all(context, addresses, puts, sequences);
}

Result<Sequence> Store::put(Put put) {
  std::vector<Sequence> sequences;
  MODCACHE_RETURN_IF_ERROR(put_all(
      put.id.context, std::span<const Digest128>(&put.id.address, 1),
      {{put.id.key, put.header, std::move(put.payload), put.run_us, put.replaces}}, sequences));
  return sequences.front();
}

}  // namespace modcache::store
