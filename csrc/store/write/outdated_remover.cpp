// SPDX-License-Identifier: Apache-2.0
#include "store/write/outdated_remover.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "store/entry/clear.h"
#include "store/entry/entry_id.h"
#include "store/segment/tombstone.h"

namespace modcache::store {
namespace {

std::vector<OutdatedEntry> outdated_by(const std::vector<QueuedPutPtr>& puts) {
  std::vector<OutdatedEntry> outdated;
  for (const QueuedPutPtr& put : puts) {
    if (put->replaces) outdated.push_back({put->context, put->key, put->sequence});
  }
  return outdated;
}

}  // namespace

void OutdatedRemover::note(const std::vector<QueuedPutPtr>& not_kept) {
  outdated_.add(outdated_by(not_kept));
}

void OutdatedRemover::remove(const std::vector<QueuedPutPtr>& not_kept) {
  note(not_kept);
  remove_noted();
}

void OutdatedRemover::remove_refused(std::vector<OutdatedEntry> refused) {
  if (refused.empty()) return;
  auto sequence = attached_.control().next_sequence();
  if (!sequence.is_ok()) return;
  for (OutdatedEntry& entry : refused) entry.sequence = sequence.value();
  outdated_.add(std::move(refused));
  remove_noted();
}

void OutdatedRemover::remove_noted() {
  if (outdated_.is_empty() || !outdated_.any() || !attached_.is_attached()) return;
  const Status status = try_to_remove();
  if (status.is_ok()) return;
  log(LogLevel::kWarning, "outdated:" + attached_.directory().path(),
      std::to_string(outdated_.size()) + " replaced results could not be removed from '" +
          attached_.directory().path() + "' (" + status.message() +
          "): other processes may find them until that succeeds; it is tried again");
}

Status OutdatedRemover::try_to_remove() {
  MutexLock lock(committer_.mutex());
  MODCACHE_ASSIGN_OR_RETURN(auto directory_lock, committer_.lock_directory());
  Status status;
  while (const auto next = outdated_.any()) {
    status = remove_older(*next);
    if (!status.is_ok()) break;
    outdated_.remove(*next);
  }
  committer_.segments().release_left();
  // This tells also of entries that the directory has evicted: others may hold them in memory. It
  // comes last, so that nobody who asks now finds one still there and believes it from then on.
  attached_.control().add_removal();
  return status;
}

Status OutdatedRemover::remove_older(const OutdatedEntry& outdated) {
  const Context& context = *outdated.context;
  const Clear clear{{context.scope, outdated.key}, outdated.sequence, context.digest};
  (void)queue_.remove(clear);
  auto older = attached_.writer().find(context.digest, outdated.key);
  if (older.is_not_found()) return Status::ok();
  if (older.is_ok() && older.value().sequence >= outdated.sequence) return Status::ok();
  // A rebuild goes by this, so it is written even where the database is broken.
  auto places = committer_.segments().append({tombstone_of(clear)});
  if (!older.is_ok()) return older.status();
  attached_.control().raise_superseded(older.value().sequence);
  // On a full disk the row goes all the same: only a rebuild could bring the entry back then.
  std::optional<std::uint64_t> with_tombstone;
  if (places.is_ok()) with_tombstone = places.value().front().segment;
  return committer_.drop_row({context, outdated.key}, older.value().sequence, with_tombstone);
}

}  // namespace modcache::store
