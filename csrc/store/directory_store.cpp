// SPDX-License-Identifier: Apache-2.0
#include "store/directory_store.h"

#include <algorithm>
#include <utility>

#include "base/without_throwing.h"
#include "store/directory/notes.h"
#include "store/pack/pack_store.h"

namespace modcache::store {
namespace {

constexpr std::uint64_t kQueueLimitBytes = 64 << 20;
constexpr std::size_t kMostOutdated = 65'536;  // a few megabytes

}  // namespace

Result<std::unique_ptr<Store>> Store::open(fs::FileSystem& file_system, StoreOptions options) {
  if (options.directory.empty()) return Status::invalid_argument("the directory's name is empty");
  auto info = file_system.info(options.directory);
  if (info.is_ok() && !info.value().is_directory) return open_pack(file_system, options);
  const Directory directory = Directory::at(file_system, options.directory);
  MODCACHE_ASSIGN_OR_RETURN(auto opened, open_directory(directory, options));
  auto store = std::make_unique<DirectoryStore>(directory, std::move(options), std::move(opened));
  MODCACHE_RETURN_IF_ERROR(store->start());
  return std::unique_ptr<Store>(std::move(store));
}

DirectoryStore::DirectoryStore(const Directory& directory, StoreOptions options,
                               OpenedDirectory opened)
    : attached_(directory, std::move(options), std::move(opened)),
      budget_(attached_.directory(), attached_.options().disk_budget_bytes),
      queue_(kQueueLimitBytes, budget_.segment_bytes() / 2),
      outdated_(kMostOutdated),
      usage_(attached_.index()),
      committer_(attached_, budget_.segment_bytes(), budget_.most_log_bytes()),
      lookup_(attached_, committer_, queue_, outdated_, usage_),
      reclaimer_(attached_, committer_, budget_, queue_, usage_),
      admission_(attached_, budget_, usage_, reclaimer_.room()),
      mirror_(attached_, committer_, usage_),
      remover_(attached_, committer_, queue_, outdated_),
      clearer_(attached_, committer_, mirror_, queue_, budget_, reclaimer_.room()),
      writer_(attached_, committer_, mirror_, queue_, remover_, reclaimer_.room()),
      intake_(attached_, admission_, lookup_, queue_, remover_, writer_) {}

Status DirectoryStore::start() {
  if (is_read_only()) return Status::ok();
  budget_.measure();
  mirror_.prepare(budget_.used_bytes());
  budget_.measure();
  if (const auto& make_policy = attached_.options().make_policy) {
    usage_.set_policy(make_policy(attached_.index().policy_state()));
  }
  return without_throwing([this] {
    writer_.start();
    reclaimer_.start();
    return Status::ok();
  });
}

Status DirectoryStore::flush() {
  if (is_read_only()) return Status::ok();
  return writer_.wait_until_safe(queue_.last_position());
}

Status DirectoryStore::drop(const EntryId& id, Sequence sequence) {
  if (is_read_only()) return Status::ok();
  if (sequence == 0) {
    auto entry = find(id);
    if (entry.status().code() != StatusCode::kCorruption) return Status::ok();
    auto location = attached_.reader().find(id.context.digest, id.key);
    if (!location.is_ok()) return Status::ok();
    sequence = location.value().sequence;
  }
  if (take_out_of_queue(batch_of(id), {sequence})) {
    // The value that it was to replace goes, too.
    const auto replaced = attached_.reader().find(id.context.digest, id.key);
    if (replaced.is_not_found()) return Status::ok();
    if (replaced.is_ok()) sequence = std::min(sequence, replaced.value().sequence);
  }
  return committer_.as_index_failure(committer_.drop(id, sequence));
}

Status DirectoryStore::take_back(const EntryIds& ids, const std::vector<Sequence>& sequences) {
  if (is_read_only()) return Status::ok();
  (void)take_out_of_queue(ids, sequences);
  Status first_failure;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (sequences[i] == 0) continue;
    // One that was being written may be in the index by now, though the queue still had it.
    const auto there = attached_.reader().find(ids.context.digest, ids.keys[i]);
    if (there.is_not_found()) continue;
    if (there.is_ok() && there.value().sequence != sequences[i]) continue;
    const Status dropped = committer_.as_index_failure(committer_.drop(ids[i], sequences[i]));
    if (first_failure.is_ok()) first_failure = dropped;
    // A directory that somebody else is busy with costs this once.
    if (dropped.code() == StatusCode::kBusy) break;
  }
  return first_failure;
}

// Returns whether the queue had any of them.
bool DirectoryStore::take_out_of_queue(const EntryIds& ids,
                                       const std::vector<Sequence>& sequences) {
  std::unordered_map<Digest128, Sequence, Digest128Hash> wanted;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (sequences[i] != 0) wanted.emplace(ids.addresses[i], sequences[i]);
  }
  if (wanted.empty()) return false;
  MutexLock lock(committer_.mutex());
  if (queue_.remove(wanted) == 0) return false;
  // Who took one from the queue into memory compares again.
  attached_.control().add_removal();
  return true;
}

Result<Evicted> DirectoryStore::evict(std::uint64_t to_bytes) {
  MODCACHE_RETURN_IF_ERROR(attached_.check_writable());
  MODCACHE_RETURN_IF_ERROR(flush());
  return reclaimer_.evict(to_bytes);
}

Result<std::string> DirectoryStore::find_note(std::string_view about) {
  return store::find_note(attached_.directory(), about);
}

Status DirectoryStore::keep_note(std::string_view about, std::string_view text) {
  const Directory& directory = attached_.directory();
  if (!directory.file_system().is_writable(directory.path())) return Status::ok();
  return store::keep_note(directory, about, text, budget_.most_notes_bytes());
}

Status DirectoryStore::clear_notes() { return store::clear_notes(attached_.directory()); }

Result<Totals> DirectoryStore::totals() {
  attached_.check_attached();
  auto entries = attached_.reader().count_entries();
  if (!entries.is_ok()) return committer_.as_index_failure(entries.status());
  MODCACHE_ASSIGN_OR_RETURN(auto size_bytes, attached_.directory().size_bytes());
  return Totals{entries.value(), static_cast<std::int64_t>(size_bytes)};
}

}  // namespace modcache::store
