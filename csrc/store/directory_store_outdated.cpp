// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: a new value that is not kept must not leave the one that it replaces to be found.
#include <utility>

#include "base/log.h"
#include "store/directory_store.h"
#include "store/index/tombstone.h"

namespace modcache::store {

std::vector<OutdatedEntry> DirectoryStore::outdated_by(const std::vector<QueuedPutPtr>& puts) {
  std::vector<OutdatedEntry> outdated;
  for (const QueuedPutPtr& put : puts) {
    if (put->replaces) outdated.push_back({put->context, put->key, put->sequence});
  }
  return outdated;
}

// Of what was refused before it had a number.
void DirectoryStore::remove_refused(std::vector<OutdatedEntry> refused) {
  if (refused.empty()) return;
  auto sequence = opened_.control->next_sequence();
  if (!sequence.is_ok()) return;
  for (OutdatedEntry& entry : refused) entry.sequence = sequence.value();
  remove_outdated(std::move(refused));
}

void DirectoryStore::remove_outdated(std::vector<OutdatedEntry> outdated) {
  outdated_.add(std::move(outdated));
  remove_outdated();
}

void DirectoryStore::remove_outdated() {
  if (outdated_.is_empty() || !outdated_.any() || !is_attached()) return;
  const Status status = try_to_remove_outdated();
  if (status.is_ok()) return;
  log(LogLevel::kWarning, "outdated:" + directory_.path(),
      std::to_string(outdated_.size()) + " replaced results could not be removed from '" +
          directory_.path() + "' (" + status.message() +
          "): other processes may find them until that succeeds; it is tried again");
}

Status DirectoryStore::try_to_remove_outdated() {
  MutexLock lock(write_mutex_);
  auto directory_lock = lock_directory();
  if (!directory_lock.is_ok()) return directory_lock.status();
  Status status;
  while (const auto next = outdated_.any()) {
    status = remove_older(*next);
    if (!status.is_ok()) break;
    outdated_.remove(*next);
  }
  segments_.release_left();
  // Also for those that the directory has evicted: others may hold them in memory. Afterwards, so
  // that nobody who asks now finds one still there and believes it from then on.
  opened_.control->add_removal();
  return status;
}

Status DirectoryStore::remove_older(const OutdatedEntry& outdated) {
  const Context& context = *outdated.context;
  const Clear clear{{context.scope, outdated.key}, outdated.sequence, context.digest};
  (void)queue_.remove(clear);
  auto older = opened_.writer->find(context.digest, outdated.key);
  if (older.is_not_found()) return Status::ok();
  if (older.is_ok() && older.value().sequence >= outdated.sequence) return Status::ok();
  // Where the database is broken, this is what a rebuild goes by.
  auto places = segments_.append({tombstone_of(clear)});
  if (!older.is_ok()) return older.status();
  opened_.control->raise_superseded(older.value().sequence);
  // On a full disk the row goes all the same: only a rebuild could bring the entry back then.
  std::optional<std::uint64_t> with_tombstone;
  if (places.is_ok()) with_tombstone = places.value().front().segment;
  return drop_in_index({context, outdated.key}, older.value().sequence, with_tombstone);
}

}  // namespace modcache::store
