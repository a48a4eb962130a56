// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: what is put, and whether there is room for it.
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "store/directory_store.h"
#include "store/index/tombstone.h"

namespace modcache::store {
namespace {

// How old the count of bytes on disk may be before it is a reason to refuse an entry.
constexpr std::int64_t kDiskBytesAgeMs = 50;
constexpr std::size_t kMostSharedContexts = 1024;
// Of a full directory one entry pushes out no more than a half.
constexpr std::uint64_t kMostShareOfFull = 2;

std::uint64_t size_on_disk(const RowPut& put) {
  RecordHead head;
  head.key_size_bytes = static_cast<std::uint32_t>(put.key.size());
  head.header_size_bytes = static_cast<std::uint32_t>(put.header.size());
  head.payload_size_bytes = put.payload.size_bytes;
  return head.record_size_bytes() + DiskBudget::kRowBytes + put.key.size();
}

Status check_row(const RowPut& put) {
  if (put.key.empty() || put.key.size() > kMaxKeySizeBytes) {
    return Status::invalid_argument("a key has between 1 and " + std::to_string(kMaxKeySizeBytes) +
                                    " bytes, not " + std::to_string(put.key.size()));
  }
  if (put.header.size() > kMaxHeaderSizeBytes) {
    return Status::invalid_argument("a header has at most " + std::to_string(kMaxHeaderSizeBytes) +
                                    " bytes, not " + std::to_string(put.header.size()));
  }
  return Status::ok();
}

// The places of those that can be stored. `refused`: why not the first of the others.
std::vector<std::size_t> storable_rows(const std::vector<RowPut>& puts, Status& refused) {
  std::vector<std::size_t> rows;
  rows.reserve(puts.size());
  for (std::size_t i = 0; i < puts.size(); ++i) {
    Status status = check_row(puts[i]);
    if (status.is_ok()) {
      rows.push_back(i);
    } else if (refused.is_ok()) {
      refused = std::move(status);
    }
  }
  return rows;
}

}  // namespace

std::shared_ptr<const Context> DirectoryStore::shared_context(const Context& context) {
  MutexLock lock(contexts_mutex_);
  const auto known = contexts_.find(context.digest);
  if (known != contexts_.end()) return known->second;
  if (contexts_.size() >= kMostSharedContexts) contexts_.clear();
  return contexts_.emplace(context.digest, std::make_shared<const Context>(context)).first->second;
}

Result<Sequence> DirectoryStore::put(Put put) {
  std::vector<Sequence> sequences;
  MODCACHE_RETURN_IF_ERROR(
      put_all(put.id.context,
              {{put.id.key, put.header, std::move(put.payload), put.run_us, put.replaces,
                /*stored_at_us=*/0, std::move(put.confirmation)}},
              sequences));
  return sequences.front();
}

Status DirectoryStore::put_all(const Context& context, const std::vector<RowPut>& puts,
                               std::vector<Sequence>& sequences) {
  sequences.assign(puts.size(), 0);
  if (puts.empty()) return Status::ok();
  if (context.scope.size() > kMaxKeySizeBytes) {
    return Status::invalid_argument("a scope has at most " + std::to_string(kMaxKeySizeBytes) +
                                    " bytes, not " + std::to_string(context.scope.size()));
  }
  Status refused;
  std::vector<std::size_t> rows = storable_rows(puts, refused);
  if (rows.empty()) return refused;
  MODCACHE_RETURN_IF_ERROR(check_writable());
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.patience_ms);
  const std::vector<std::shared_ptr<QueuedPut>> kept = within_budget(context, puts, rows);
  if (kept.empty()) return refused;
  MODCACHE_RETURN_IF_ERROR(number(context, kept));
  std::size_t pushed = 0;
  auto position = queue_.push_all({kept.begin(), kept.end()}, deadline, pushed);
  outdated_.add(outdated_by({kept.begin() + static_cast<std::ptrdiff_t>(pushed), kept.end()}));
  if (options_.durability == Durability::kStrict) {
    MODCACHE_RETURN_IF_ERROR(position.status());
    MODCACHE_RETURN_IF_ERROR(wait_until_safe(position.value()));
  }
  for (std::size_t i = 0; i < pushed; ++i) sequences[rows[i]] = kept[i]->sequence;
  MODCACHE_RETURN_IF_ERROR(position.status());
  return refused;
}

// Those of `rows` that are kept; the others are taken out of it.
std::vector<std::shared_ptr<QueuedPut>> DirectoryStore::within_budget(
    const Context& context, const std::vector<RowPut>& puts, std::vector<std::size_t>& rows) {
  std::vector<std::shared_ptr<QueuedPut>> kept;
  std::vector<std::size_t> kept_rows;
  kept.reserve(rows.size());
  kept_rows.reserve(rows.size());
  std::uint64_t taken_bytes = queue_.size_bytes();
  SharedHeader header;
  std::vector<OutdatedEntry> outdated;
  for (const std::size_t i : rows) {
    const RowPut& put = puts[i];
    const std::uint64_t size_bytes = size_on_disk(put);
    const Room room = room_for(context, put, size_bytes, taken_bytes);
    if (room == Room::kNone) {
      if (put.replaces) outdated.push_back({shared_context(context), std::string(put.key), 0});
      continue;
    }
    taken_bytes += size_bytes;
    const HeaderParts parts = split_header(put.header);
    if (header == nullptr || *header != parts.shared) header = locations_->intern(parts.shared);
    auto queued = std::make_shared<QueuedPut>();
    queued->key = put.key;
    queued->own_part = parts.own_part;
    queued->header = header;
    queued->payload = put.payload;
    queued->run_us = put.run_us;
    queued->stored_at_us = put.stored_at_us;
    queued->size_bytes = size_bytes;
    queued->replaces = put.replaces;
    queued->may_evict = room == Room::kOfOthers;
    if (put.confirmation != nullptr) {
      queued->confirmation = put.confirmation;
      queued->evidence = put.confirmation->evidence();
    }
    kept.push_back(std::move(queued));
    kept_rows.push_back(i);
  }
  rows = std::move(kept_rows);
  remove_refused(std::move(outdated));
  return kept;
}

DirectoryStore::Room DirectoryStore::room_for(const Context& context, const RowPut& put,
                                              std::uint64_t size_bytes, std::uint64_t taken_bytes) {
  // Another process may have made room, or taken it.
  if (budget_.room_bytes(taken_bytes) < size_bytes) budget_.measure_if_older_than(kDiskBytesAgeMs);
  if (!budget_.is_full(size_bytes, taken_bytes, opened_.control->evictions())) return Room::kFree;
  const bool is_too_large = size_bytes > budget_.budget_bytes() / kMostShareOfFull;
  const Digest128 address = address_of(context.digest, put.key);
  if (is_too_large || !(admits(address) || (put.replaces && has_one({context, put.key})))) {
    look_for_dead_space();
    return Room::kNone;
  }
  const std::uint64_t room = budget_.room_bytes(taken_bytes);
  if (room < size_bytes + budget_.segment_bytes() / 4) {
    // What comes before it must be written first.
    const bool is_behind = taken_bytes > budget_.segment_bytes();
    if (room < size_bytes && (is_behind || is_exhausted())) return Room::kNone;
    ask_for_room(size_bytes, true);
  }
  return Room::kOfOthers;
}

// Whether an entry may be there, which this one would take the place of.
bool DirectoryStore::has_one(const EntryId& id) {
  SharedIndex::Slot slot;
  const auto answer = index_->find(address_of(id.context.digest, id.key), slot);
  if (answer != SharedIndex::Answer::kUnknown) return answer == SharedIndex::Answer::kFound;
  return !opened_.reader->find(id.context.digest, id.key).is_not_found();
}

Status DirectoryStore::number(const Context& context,
                              const std::vector<std::shared_ptr<QueuedPut>>& puts) {
  const std::shared_ptr<const Context> shared = shared_context(context);
  const std::int64_t stored_at_us = now_us();
  // In this order: a clear between the two has the smaller sequence and spares these puts.
  const std::uint64_t clears = opened_.control->clears();
  auto first = opened_.control->next_sequences(puts.size());
  if (!first.is_ok()) return first.status();
  Sequence sequence = first.value();
  for (const auto& put : puts) {
    put->context = shared;
    if (put->stored_at_us == 0) put->stored_at_us = stored_at_us;
    put->clears = clears;
    put->sequence = sequence++;
  }
  return Status::ok();
}

}  // namespace modcache::store
