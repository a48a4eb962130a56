// SPDX-License-Identifier: Apache-2.0
//
// RemoteTier: what it writes: results, removals and clears.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "cache/entry_header.h"
#include "cache/remote_tier.h"

namespace modcache::cache {
namespace {

using WriteClock = remote::Client::Clock;

}  // namespace

void RemoteTier::remove(RemoteServer& server, const Digest128& address) {
  std::vector<remote::WriteBehind::Write> writes(1);
  writes[0].name = server.entry_name(address);
  (void)server.writes().push(std::move(writes));
}

void RemoteTier::drop(const store::EntryId& id, Access access) {
  if (access != Access::kWrite) return;
  note_replacement();
  // The removal waits for a server that is left alone.
  const ServerPtr server = server_in_any_state();
  if (server != nullptr) remove(*server, id.address);
  // Who asked the server before the removal waited, and after the first count, got the old value.
  note_replacement();
}

remote::WriteBehind::Write RemoteTier::write_of(EntryToWrite to_write, const EntryPtr& entry,
                                                bool replaces) const {
  remote::WriteBehind::Write write = to_write.write(entry->value->size_bytes(), replaces);
  write.encode = [to_write = std::move(to_write), entry]() -> Result<std::string> {
    const Written written = entry->value->write(codec::Codec::kNone);
    const std::string header = pack_header(entry->signature, written.header, entry->sample.bytes());
    const std::int64_t run_us = entry->run_us.value_or(0);
    return to_write.encode(header, written.payload.view(), run_us, now_us());
  };
  return write;
}

std::shared_ptr<const MarkOfWrite> RemoteTier::mark(const std::string& scope) {
  const ServerPtr server = server_in_any_state();
  if (server == nullptr) return nullptr;
  const std::uint64_t clears = server->generations().clears();
  return std::make_shared<const MarkOfWrite>(clears, server->generation_now(scope));
}

void RemoteTier::store(const Keys& keys, OneOrMany<EntryPtr>& entries, const StoreOptions& options,
                       OneOrMany<Kept>& kept) {
  const bool replaces = options.replaces;
  if (replaces) note_replacement();
  const ServerPtr server = server_in_any_state();
  if (server == nullptr) return;
  std::vector<remote::WriteBehind::Write> writes;
  writes.reserve(keys.size());
  auto mark = options.since != nullptr ? options.since->on_server : nullptr;
  if (mark == nullptr) {
    remote::Generations& generations = server->generations();
    mark = std::make_shared<const MarkOfWrite>(generations.clears(),
                                               generations.current(keys.context()->scope));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    writes.push_back(write_of({*server, mark, keys, i}, entries[i], replaces));
  }
  const std::vector<bool> are_taken = server->writes().push(std::move(writes));
  if (replaces) note_replacement();  // as in drop()
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (are_taken[i]) kept[i].is_kept = true;
  }
}

bool RemoteTier::clear(const std::string& scope, std::int64_t older_than_us) {
  const ServerPtr server = server_in_any_state();
  Status status = Status::io_error("there is no connection");
  if (server != nullptr) {
    // Writes that wait were stored before, too; they must not follow a clear.
    (void)server->writes().flush(WriteClock::now() + server->timeout());
    status = server->client().run(
        [server, scope, older_than_us](remote::Backend& backend) {
          return server->generations().clear(scope, older_than_us, backend);
        },
        server->timeout());
  }
  if (status.is_ok()) return true;
  report(Status::io_error("it was not cleared, and what is in it will be found again: " +
                          status.message()),
         "clearing");
  return false;
}

}  // namespace modcache::cache
