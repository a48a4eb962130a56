// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_write.h"

#include <utility>

#include "remote/record.h"

namespace modcache::cache {

Result<remote::Generations::Current> MarkOfWrite::find(RemoteServer& server,
                                                       const std::string& scope) const {
  if (server.generations().clears() != clears_) {
    return Status::io_error("it was cleared before it was written");
  }
  if (known_.has_value()) return *known_;
  const auto made = server.find_or_make_generation(scope);
  // The clear may have come while the server was asked.
  if (server.generations().clears() != clears_) {
    return Status::io_error("it was cleared while it was written");
  }
  return made;
}

EntryToWrite::EntryToWrite(RemoteServer& server, std::shared_ptr<const MarkOfWrite> mark,
                           const Keys& keys, std::size_t i)
    : server_(&server),
      mark_(std::move(mark)),
      context_(keys.context()),
      key_(keys.keys[i]),
      address_(keys.addresses[i]) {}

remote::WriteBehind::Write EntryToWrite::write(std::size_t payload_size_bytes,
                                               bool replaces) const {
  remote::WriteBehind::Write write;
  write.name = server_->entry_name(address_);
  write.size_bytes = payload_size_bytes + key_.size();
  write.replaces = replaces;
  return write;
}

Result<std::string> EntryToWrite::encode(std::string_view header, std::string_view payload,
                                         std::int64_t run_us, std::int64_t stored_at_us) const {
  MODCACHE_ASSIGN_OR_RETURN(const auto current, mark_->find(*server_, context_->scope));
  return remote::encode_record(
      {current.generation, context_->digest, key_, header, payload, run_us, stored_at_us},
      server_->seal());
}

}  // namespace modcache::cache
