// SPDX-License-Identifier: Apache-2.0
//
// RemoteTier: what nearer tiers have and the server lacks.
#include <algorithm>
#include <memory>
#include <utility>

#include "cache/remote_tier.h"

namespace modcache::cache {
std::vector<bool> RemoteTier::find_lacking(const TierKeys& keys,
                                           const std::vector<std::int64_t>& stored_at_us) {
  std::vector<bool> is_lacking(keys.size(), false);
  // The work may go on when nobody waits for it any more, so it owns its answer.
  struct Answer {
    std::vector<std::string> names;
    remote::Generations::Current current;
    std::vector<SharedBytes> beginnings;
  };
  const auto answer = std::make_shared<Answer>();
  const ServerPtr server = this->server();
  if (server == nullptr) {
    note_lost(keys.size());
    return is_lacking;
  }
  for (const Digest128& address : keys.addresses) {
    answer->names.push_back(server->entry_name(address));
  }
  const Status status = server->client().run(
      [server, answer, scope = keys.context()->scope](remote::Backend& backend) -> Status {
        MODCACHE_ASSIGN_OR_RETURN(answer->current,
                                  server->generations().find_or_make(scope, backend));
        return backend.get_beginnings(answer->names, remote::RecordBeginning::kSizeBytes,
                                      answer->beginnings);
      },
      server->timeout());
  if (!status.is_ok() || answer->beginnings.size() != keys.size()) {
    note_lost(keys.size());
    return is_lacking;
  }
  const remote::Generations::Current& current = answer->current;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    // Entries that a clear of the server took must not come back. The part is left to machines that
    // have none.
    if (stored_at_us[i] < std::max(current.not_before_us, current.cleared_at_us)) {
      note_lost(1);
      continue;
    }
    // Those that wait will be there.
    if (server->writes().is_pending(answer->names[i])) continue;
    const SharedBytes& bytes = answer->beginnings[i];
    const auto record = bytes.owner != nullptr ? remote::decode_beginning(bytes.view())
                                               : std::optional<remote::RecordBeginning>();
    is_lacking[i] =
        !record.has_value() || !record->is_as_new(current.generation, keys.context()->digest,
                                                  keys.keys[i].size(), stored_at_us[i]);
  }
  return is_lacking;
}

std::shared_ptr<const MarkOfWrite> RemoteTier::mark_of_supply(const std::string& scope) {
  const ServerPtr server = server_in_any_state();
  return server != nullptr ? std::make_shared<MarkOfWrite>(*server, scope) : nullptr;
}

void RemoteTier::supply(const TierKeys& keys, const std::shared_ptr<const MarkOfWrite>& mark,
                        Span<EntryPtr> entries, const std::vector<std::int64_t>& stored_at_us) {
  const ServerPtr server = server_in_any_state();
  if (server == nullptr || mark == nullptr) return note_lost(keys.size());
  std::vector<remote::WriteBehind::Write> writes;
  writes.reserve(keys.size() + 1);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    writes.push_back(
        write_of({*server, mark, keys, i}, entries[i], /*replaces=*/false, stored_at_us[i]));
  }
  add_context(*server, keys.context(), writes);
  (void)server->writes().push(std::move(writes));
}

void RemoteTier::supply_rows(const TierKeys& keys, const std::shared_ptr<const MarkOfWrite>& mark,
                             const FoundRows& rows, const std::vector<std::size_t>& which) {
  const ServerPtr server = server_in_any_state();
  if (server == nullptr || mark == nullptr) return note_lost(keys.size());
  std::vector<remote::WriteBehind::Write> writes;
  writes.reserve(keys.size() + 1);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t row = which[i];
    std::string payload(rows.payload_size_bytes(row), '\0');
    // Whoever reads a row that is broken finds that out, and runs the module.
    if (rows.is_provisional(row) || !rows.read(row, payload.data()).is_ok()) {
      note_lost(1);
      continue;
    }
    const EntryToWrite to_write(*server, mark, keys, i);
    remote::WriteBehind::Write write = to_write.write(payload.size(), /*replaces=*/false);
    write.encode = [to_write, payload = std::move(payload),
                    header = rows.entries().whole_header(row), run_us = rows.run_us(row),
                    stored_at_us = rows.entries().stored_at_us(row)](bool) {
      return to_write.encode_older(header, payload, run_us, stored_at_us);
    };
    writes.push_back(std::move(write));
  }
  add_context(*server, keys.context(), writes);
  (void)server->writes().push(std::move(writes));
}

}  // namespace modcache::cache
