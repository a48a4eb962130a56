// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore, many keys at once.
#include <utility>

#include "store/batch_lookup.h"
#include "store/directory_store.h"

namespace modcache::store {
namespace {

// How many records ahead of the one that is taken they are fetched from memory.
constexpr std::size_t kAhead = 4;

}  // namespace

FoundEntries DirectoryStore::find_all(const Context& context,
                                      const std::vector<std::string_view>& keys) {
  if (is_read_only()) let_go_of_gone();  // no thread does
  BatchLookup batch(context, keys, readers_, locations_);
  auto queued = queue_.find_all(context.digest, keys, batch.addresses());
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (queued[i] != nullptr && !was_cleared(*queued[i])) {
      batch.take_queued(i, std::move(queued[i]));
    }
  }
  const std::uint64_t removals = counted_removals();
  batch.take_known(removals, is_still_there_);
  const std::vector<std::size_t> unknown = take_shared(batch.missing(), batch);
  if (!unknown.empty()) take_from_index(context, keys, unknown, batch);
  if (!outdated_.is_empty()) batch.pass_over_outdated(outdated_);
  if (options_.max_age_us > 0) batch.pass_over_older(expired_before_us());
  const std::vector<Digest128> addresses =
      policy_ == nullptr ? std::vector<Digest128>() : batch.addresses();
  FoundEntries found = std::move(batch).finish(removals);
  note_lookups(addresses, found);
  return found;
}

// Returns those of which only the database can tell.
std::vector<std::size_t> DirectoryStore::take_shared(std::vector<std::size_t> missing,
                                                     BatchLookup& batch) {
  if (missing.empty() || !check_attached()) return missing;
  std::vector<SharedIndex::Slot> slots(missing.size());
  std::vector<SharedIndex::Answer> answers(missing.size());
  index_->find_all(
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

void DirectoryStore::take_from_index(const Context& context,
                                     const std::vector<std::string_view>& keys,
                                     const std::vector<std::size_t>& missing, BatchLookup& batch) {
  auto locations = opened_.reader->find_all(context.digest, keys, missing);
  if (!locations.is_ok()) return batch.fail_index(as_index_failure(locations.status()));
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
    take_again(EntryId{context, keys[i]}, i, *location, std::move(status), batch);
  }
}

// As find_stored() does: what went away between the two looks is not broken.
void DirectoryStore::take_again(const EntryId& id, std::size_t i, Location failed, Status failure,
                                BatchLookup& batch) {
  while (failure.code() == StatusCode::kCorruption) {
    auto location = opened_.reader->find(id.context.digest, id.key);
    if (location.is_not_found()) return;
    if (!location.is_ok()) return batch.fail_index(as_index_failure(location.status()));
    if (location.value().is_same_place(failed)) break;
    failed = location.value();
    failure = batch.take_stored(i, failed);
  }
  if (!failure.is_ok()) batch.fail(i, failed.sequence, std::move(failure));
}

// Fills in the sequences that the shared index knows; returns those of which only the database can
// tell.
std::vector<std::size_t> DirectoryStore::take_current(const std::vector<Digest128>& addresses,
                                                      const std::vector<std::size_t>& unknown,
                                                      std::vector<Sequence>& current) {
  std::vector<std::size_t> left;
  index_->find_all(
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

std::vector<bool> DirectoryStore::are_current(const Context& context,
                                              const std::vector<std::string_view>& keys,
                                              const std::vector<Sequence>& sequences) {
  std::vector<Digest128> addresses;
  addresses.reserve(keys.size());
  for (const std::string_view key : keys) addresses.push_back(address_of(context.digest, key));
  std::vector<Sequence> current(keys.size(), 0);  // 0: not known yet
  auto queued = queue_.find_all(context.digest, keys, addresses);
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (queued[i] != nullptr && !was_cleared(*queued[i])) current[i] = queued[i]->sequence;
  }
  locations_->find_all(addresses, counted_removals(),
                       [&](std::size_t i, const LocationMap::Visited& record) {
                         // Its address may be another's: only a match says something.
                         if (current[i] == 0 && record.sequence == sequences[i]) {
                           current[i] = record.sequence;
                         }
                       });
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (current[i] == 0) unknown.push_back(i);
  }
  unknown = take_current(addresses, unknown, current);
  if (!unknown.empty()) {
    auto locations = opened_.reader->find_all(context.digest, keys, unknown);
    for (std::size_t place = 0; locations.is_ok() && place < unknown.size(); ++place) {
      const auto& location = locations.value()[place];
      if (location) current[unknown[place]] = location->sequence;
    }
  }
  std::vector<bool> answers(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    answers[i] = sequences[i] != 0 && current[i] == sequences[i] &&
                 !outdated_.covers(addresses[i], sequences[i]);
  }
  return answers;
}

}  // namespace modcache::store
