// SPDX-License-Identifier: Apache-2.0
#include "store/lookup/lookup.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/one_or_many.h"
#include "store/lookup/file_pieces.h"

namespace modcache::store {
namespace {

// Records are fetched from memory this many places ahead of the one that is taken.
constexpr std::size_t kAhead = 4;

// Reading so many bytes in vain costs less than another request to the disk.
constexpr std::uint64_t kGapBytes = 64 << 10;

}  // namespace

bool Lookup::was_cleared_since(const Moment& moment, const Context& context, std::string_view key) {
  const Moment now = attached_.now();
  if (moment.source != now.source) return true;
  if (moment.clears == now.clears) return false;
  auto is_cleared = attached_.reader().is_cleared(context, key, moment.sequence);
  return !is_cleared.is_ok() || is_cleared.value();
}

// An entry that was put here before another process cleared it is gone, although it still waits
// in the queue.
bool Lookup::was_cleared(const QueuedPut& put) {
  if (put.clears == attached_.control().clears()) return false;
  auto is_cleared = attached_.reader().is_cleared(*put.context, put.key, put.begun_at);
  return !is_cleared.is_ok() || is_cleared.value();
}

// Asked of records that this process knew before something was removed. False where only the
// database can tell.
bool Lookup::is_still_there(const Digest128& address, std::uint64_t segment, std::uint64_t offset,
                            Sequence sequence) const {
  SharedIndex::Slot slot;
  return attached_.is_attached() &&
         attached_.index().find(address, slot) == SharedIndex::Answer::kFound &&
         slot.sequence == sequence && slot.segment == segment && slot.offset == offset;
}

FoundEntries Lookup::find_all(const EntryIds& ids) {
  if (attached_.is_read_only()) attached_.forget_retired();  // no thread does it
  BatchLookup batch(ids, attached_.readers(), locations_);
  auto queued = queue_.find_all(ids);
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (queued[i] != nullptr && !was_cleared(*queued[i])) {
      batch.take_queued(i, std::move(queued[i]));
    }
  }
  const std::uint64_t removals = attached_.counted_removals();
  batch.take_known(removals, is_still_there_);
  const std::vector<std::size_t> unknown = take_shared(batch.missing(), batch);
  if (!unknown.empty()) take_from_index(ids, unknown, batch);
  if (!outdated_.is_empty()) batch.pass_over_outdated(outdated_);
  const std::int64_t max_age_us = ids.max_age_us.value_or(attached_.options().max_age_us);
  if (max_age_us > 0) batch.pass_over_older(now_us() - max_age_us);
  FoundEntries found = std::move(batch).finish(removals);
  if (usage_.has_policy()) {
    OneOrMany<Sequence> sequences(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (found.has(i)) sequences[i] = found.sequence(i);
    }
    usage_.note_lookups(ids.addresses, sequences);
  }
  return found;
}

std::vector<std::size_t> Lookup::take_shared(std::vector<std::size_t> missing, BatchLookup& batch) {
  if (missing.empty() || !attached_.check_attached()) return missing;
  OneOrMany<SharedIndex::Slot> slots(missing.size());
  OneOrMany<SharedIndex::Answer> answers(missing.size());
  attached_.index().find_all(
      batch.addresses(), missing,
      [&](std::size_t place, SharedIndex::Answer answer, const SharedIndex::Slot& slot) {
        answers[place] = answer;
        slots[place] = slot;
      });
  std::vector<std::size_t> unknown;
  for (std::size_t place = 0; place < missing.size(); ++place) {
    const std::size_t ahead = place + kAhead;
    if (ahead < missing.size() && answers[ahead] == SharedIndex::Answer::kFound) {
      batch.expect_stored(slots[ahead].segment, slots[ahead].offset);
    }
    if (answers[place] == SharedIndex::Answer::kAbsent) continue;
    const SharedIndex::Slot& slot = slots[place];
    const bool is_taken = answers[place] == SharedIndex::Answer::kFound &&
                          batch.take_at(missing[place], slot.segment, slot.offset, slot.sequence);
    if (!is_taken) unknown.push_back(missing[place]);
  }
  return unknown;
}

void Lookup::take_from_index(const EntryIds& ids, const std::vector<std::size_t>& missing,
                             BatchLookup& batch) {
  auto locations = attached_.reader().find_all(ids.context.digest, ids.keys, missing);
  if (!locations.is_ok()) return batch.fail_index(committer_.as_index_failure(locations.status()));
  for (std::size_t place = 0; place < missing.size(); ++place) {
    if (place + kAhead < missing.size() && locations.value()[place + kAhead]) {
      const Location& ahead = *locations.value()[place + kAhead];
      batch.expect_stored(ahead.segment, ahead.offset);
    }
    const auto& location = locations.value()[place];
    if (!location) continue;
    const std::size_t i = missing[place];
    Status status = batch.take_stored(i, *location);
    if (status.is_ok()) continue;
    take_again(ids[i], i, *location, std::move(status), batch);
  }
}

// A record that went away between two looks is not broken. One that is at the same place and still
// unreadable is: it was neither removed nor moved.
void Lookup::take_again(const EntryId& id, std::size_t i, Location failed, Status failure,
                        BatchLookup& batch) {
  while (failure.code() == StatusCode::kCorruption) {
    auto location = attached_.reader().find(id.context.digest, id.key);
    if (location.is_not_found()) return;
    if (!location.is_ok()) return batch.fail_index(committer_.as_index_failure(location.status()));
    if (location.value().is_same_place(failed)) break;
    failed = location.value();
    failure = batch.take_stored(i, failed);
  }
  if (!failure.is_ok()) batch.fail(i, failed.sequence, std::move(failure));
}

// Fills in the sequences that the shared index knows.
std::vector<std::size_t> Lookup::take_current(std::span<const Digest128> addresses,
                                              const std::vector<std::size_t>& unknown,
                                              std::vector<Sequence>& current) {
  std::vector<std::size_t> left;
  attached_.index().find_all(
      addresses, unknown,
      [&](std::size_t place, SharedIndex::Answer answer, const SharedIndex::Slot& slot) {
        if (answer == SharedIndex::Answer::kFound) {
          current[unknown[place]] = slot.sequence;
        } else if (answer == SharedIndex::Answer::kUnknown) {
          left.push_back(unknown[place]);
        }
      });
  return left;
}

std::vector<Sequence> Lookup::current_sequences(
    const EntryIds& ids, const std::function<bool(std::size_t, Sequence)>& is_believed) {
  std::vector<Sequence> current(ids.size(), 0);  // 0: not known yet
  auto queued = queue_.find_all(ids);
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (queued[i] != nullptr && !was_cleared(*queued[i])) current[i] = queued[i]->sequence;
  }
  locations_->find_all(ids.addresses, attached_.counted_removals(),
                       [&](std::size_t i, const LocationMap::Visited& record) {
                         if (current[i] == 0 && is_believed(i, record.sequence)) {
                           current[i] = record.sequence;
                         }
                       });
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (current[i] == 0) unknown.push_back(i);
  }
  unknown = take_current(ids.addresses, unknown, current);
  if (!unknown.empty()) {
    auto locations = attached_.reader().find_all(ids.context.digest, ids.keys, unknown);
    for (std::size_t place = 0; locations.is_ok() && place < unknown.size(); ++place) {
      const auto& location = locations.value()[place];
      if (location) current[unknown[place]] = location->sequence;
    }
  }
  for (std::size_t i = 0; !outdated_.is_empty() && i < ids.size(); ++i) {
    if (current[i] != 0 && outdated_.covers(ids.addresses[i], current[i])) current[i] = 0;
  }
  return current;
}

std::vector<bool> Lookup::are_current(const EntryIds& ids, const std::vector<Sequence>& sequences) {
  // The address of a known record may be another's: only a match says something.
  const std::vector<Sequence> current = current_sequences(
      ids, [&](std::size_t i, Sequence sequence) { return sequence == sequences[i]; });
  std::vector<bool> answers(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    answers[i] = sequences[i] != 0 && current[i] == sequences[i];
  }
  return answers;
}

std::vector<Sequence> Lookup::sequences(const EntryIds& ids) {
  if (ids.max_age_us.value_or(attached_.options().max_age_us) == 0) {
    return current_sequences(ids, [](std::size_t, Sequence) { return true; });
  }
  // Only the records say how old they are.
  const FoundEntries found = find_all(ids);
  std::vector<Sequence> sequences(ids.size(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (found.has(i)) sequences[i] = found.sequence(i);
  }
  return sequences;
}

std::size_t Lookup::expect(const EntryIds& ids, std::uint64_t most_bytes) {
  std::vector<std::size_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<FilePiece> pieces;
  std::size_t count = ids.size();
  std::uint64_t size_bytes = 0;
  attached_.index().find_all(
      ids.addresses, rows,
      [&](std::size_t i, SharedIndex::Answer answer, const SharedIndex::Slot& slot) {
        if (answer != SharedIndex::Answer::kFound || i >= count) return;
        // A damaged slot may claim anything.
        const std::uint64_t piece_bytes = std::clamp<std::uint64_t>(slot.size_bytes, 1, most_bytes);
        size_bytes += piece_bytes;
        if (size_bytes > most_bytes && i > 0) {
          count = i;
        } else {
          pieces.push_back({slot.segment, slot.offset, piece_bytes});
        }
      });
  for (const FilePiece& piece : put_together(std::move(pieces), kGapBytes)) {
    auto reader = attached_.readers().get(piece.segment);
    if (reader.is_ok()) reader.value()->expect(piece.offset, piece.size_bytes);
  }
  return count;
}

}  // namespace modcache::store
