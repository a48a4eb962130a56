// SPDX-License-Identifier: Apache-2.0
#include "store/write/intake.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/clock.h"
#include "store/entry/options.h"
#include "store/reclaim/disk_budget.h"
#include "store/segment/record.h"

namespace modcache::store {
namespace {

constexpr std::size_t kMostSharedContexts = 1024;

std::uint64_t size_on_disk(const RowPut& put) {
  return record_size_bytes(put.key.size(), put.header.size(), put.payload.size_bytes) +
         DiskBudget::kRowBytes + put.key.size();
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

// The places of those that can be stored. `refused`: why the first of the others cannot.
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

std::shared_ptr<const Context> Intake::shared_context(const Context& context) {
  MutexLock lock(contexts_mutex_);
  const auto known = contexts_.find(context.digest);
  if (known != contexts_.end()) return known->second;
  if (contexts_.size() >= kMostSharedContexts) contexts_.clear();
  return contexts_.emplace(context.digest, std::make_shared<const Context>(context)).first->second;
}

Status Intake::put_all(const Context& context, std::span<const Digest128> addresses,
                       const std::vector<RowPut>& puts, std::vector<Sequence>& sequences) {
  sequences.assign(puts.size(), 0);
  if (puts.empty()) return Status::ok();
  if (context.scope.size() > kMaxKeySizeBytes) {
    return Status::invalid_argument("a scope has at most " + std::to_string(kMaxKeySizeBytes) +
                                    " bytes, not " + std::to_string(context.scope.size()));
  }
  Status refused;
  std::vector<std::size_t> rows = storable_rows(puts, refused);
  if (rows.empty()) return refused;
  MODCACHE_RETURN_IF_ERROR(attached_.check_writable());
  const auto deadline =
      WriteQueue::Clock::now() + std::chrono::milliseconds(attached_.options().patience_ms);
  const QueuedPuts kept = within_budget(context, addresses, puts, rows);
  if (kept.empty()) return refused;
  MODCACHE_RETURN_IF_ERROR(number(context, kept));
  std::size_t pushed = 0;
  auto position = queue_.push_all({kept.begin(), kept.end()}, deadline, pushed);
  remover_.note({kept.begin() + static_cast<std::ptrdiff_t>(pushed), kept.end()});
  if (attached_.options().durability == Durability::kStrict) {
    MODCACHE_RETURN_IF_ERROR(position.status());
    MODCACHE_RETURN_IF_ERROR(writer_.wait_until_safe(position.value()));
  }
  for (std::size_t i = 0; i < pushed; ++i) sequences[rows[i]] = kept[i]->sequence;
  MODCACHE_RETURN_IF_ERROR(position.status());
  return refused;
}

// Returns those of `rows` that are kept, and takes the others out of it.
Intake::QueuedPuts Intake::within_budget(const Context& context,
                                         std::span<const Digest128> addresses,
                                         const std::vector<RowPut>& puts,
                                         std::vector<std::size_t>& rows) {
  QueuedPuts kept;
  std::vector<std::size_t> kept_rows;
  kept.reserve(rows.size());
  kept_rows.reserve(rows.size());
  std::uint64_t taken_bytes = queue_.size_bytes();
  SharedHeader header;
  std::vector<OutdatedEntry> outdated;
  for (const std::size_t i : rows) {
    const RowPut& put = puts[i];
    const std::uint64_t size_bytes = size_on_disk(put);
    const EntryId id{context, put.key, addresses[i]};
    const Admission::Room room = admission_.room_for(id, put.replaces, size_bytes, taken_bytes);
    if (room == Admission::Room::kNone) {
      if (put.replaces) outdated.push_back({shared_context(context), std::string(put.key), 0});
      continue;
    }
    taken_bytes += size_bytes;
    const HeaderParts parts = split_header(put.header);
    if (header == nullptr || *header != parts.shared) header = lookup_.intern(parts.shared);
    auto queued = std::make_shared<QueuedPut>();
    queued->key = put.key;
    queued->address = id.address;
    queued->own_part = parts.own_part;
    queued->header = header;
    queued->payload = put.payload;
    queued->run_us = put.run_us;
    queued->stored_at_us = put.stored_at_us;
    queued->size_bytes = size_bytes;
    queued->replaces = put.replaces;
    queued->may_evict = room == Admission::Room::kOfOthers;
    if (put.since != nullptr) {
      queued->clears = put.since->clears;
      queued->begun_at = put.since->sequence;
    }
    kept.push_back(std::move(queued));
    kept_rows.push_back(i);
  }
  rows = std::move(kept_rows);
  remover_.remove_refused(std::move(outdated));
  return kept;
}

Status Intake::number(const Context& context, const QueuedPuts& puts) {
  const std::shared_ptr<const Context> shared = shared_context(context);
  const std::int64_t stored_at_us = now_us();
  // The count of clears is read first: a clear between the two has the smaller sequence and spares
  // these puts.
  const std::uint64_t clears = attached_.control().clears();
  MODCACHE_ASSIGN_OR_RETURN(auto first, attached_.control().next_sequences(puts.size()));
  Sequence sequence = first;
  for (const auto& put : puts) {
    put->context = shared;
    if (put->stored_at_us == 0) put->stored_at_us = stored_at_us;
    put->sequence = sequence++;
    if (put->begun_at != QueuedPut::kWhenPut) continue;
    put->clears = clears;
    put->begun_at = put->sequence;
  }
  return Status::ok();
}

}  // namespace modcache::store
