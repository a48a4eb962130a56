// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/log.h"
#include "cache/cache.h"

namespace modcache::cache {
Session::Session(Settings settings, std::shared_ptr<MemoryTier> memory,
                 std::shared_ptr<DiskTier> disk, const Shared& shared)
    : settings_(std::move(settings)),
      match_(settings_.match),
      memory_(std::move(memory)),
      disk_(std::move(disk)),
      format_(shared.format),
      flights_(shared.flights),
      stats_(shared.stats),
      places_(shared.places),
      read_ahead_(shared.read_ahead),
      conflicts_(shared.conflicts) {}

// What is held in memory is what the directory would answer, unless some process has removed or
// replaced entries since it was last compared; then it is compared again, entry by entry. Where
// another directory or pack took its place nothing is comparable, and each entry goes.
EntryPtr Session::find_in_memory(const Digest128& address, const Request& request,
                                 MemoryTier::OnMiss on_miss) {
  MemoryTier::Held held = memory_->get(address, request.id(), on_miss);
  if (held.entry == nullptr) return nullptr;
  if (!is_valid(*held.entry, settings_.max_age_s)) {
    memory_->erase(address, request.id());
    return nullptr;
  }
  const std::uint64_t removals = disk_->removals();
  if (held.removals == removals) return std::move(held.entry);
  if (disk_->is_current(request.id(), {held.sequence, held.removals})) {
    memory_->confirm(address, request.id(), held.sequence, removals);
    return std::move(held.entry);
  }
  memory_->erase(address, request.id());
  return nullptr;
}

Session::Found Session::find(const Digest128& address, const Request& request, bool may_write) {
  if (EntryPtr entry = find_in_memory(address, request, MemoryTier::OnMiss::kCount))
    return {std::move(entry), Counter::kHitsMemory};
  DiskTier::Found found = disk_->get(request.id(), access(may_write));
  if (found.entry == nullptr) return {};
  found.entry = moved_to_place(request.context->scope, std::move(found.entry));
  memory_->put(address, request.context, request.key,
               MemoryTier::Held{found.entry, found.sequence, found.removals});
  return {std::move(found.entry), Counter::kHitsDisk};
}

bool Session::compares_input(const std::string& scope, const InputSource* input) {
  if (input == nullptr || !match_.compares_samples()) return false;
  return !input->is_costly() || conflicts_.looks_at_costly(scope, settings_.match_device_share);
}

InputSample Session::sample_to_keep(const InputSource& input, std::size_t row) const {
  MeasuredInput measured;
  const bool is_wanted = !input.is_costly() || match_.compares_samples();
  return is_wanted && input.measure(row, measured) ? measured.sample() : InputSample();
}

Request Session::asked(const Request& request) {
  Request asked = request;
  if (!compares_input(request.context->scope, request.input)) asked.input = nullptr;
  return asked;
}

bool Session::accepts(const Request& request, const Entry& entry) {
  if (matches(request, entry.signature, entry.sample.bytes())) return true;
  note_conflict(request, entry.signature, entry.stored_at_us);
  return false;
}

void Session::note_conflict(const Request& request, std::string_view signature,
                            std::int64_t stored_at_us) {
  stats_.add(Counter::kKeyConflicts);
  warn_of_conflict(request, signature);
  if (match_.fits_signature(request.signature, signature)) {
    conflicts_.note_conflict(request.context->scope, stored_at_us);
  }
}

void Session::note_conflict_in_batch(const Request& request, std::size_t rows) {
  stats_.add(Counter::kKeyConflicts, static_cast<std::int64_t>(rows));
  warn_of_conflict(request, request.signature);
  for (std::size_t i = 0; i < rows; ++i) {
    conflicts_.note_conflict(request.context->scope, now_us());
  }
}

void Session::warn_of_conflict(const Request& request, std::string_view signature) {
  const std::string key = "key '" + std::string(request.key.substr(0, 200)) + "' ";
  if (signature == request.signature) {
    log_once(LogLevel::kWarning, "key-conflict-values:" + request.context->scope,
             key +
                 "was stored for another input of the same shape: the entry is not used, and the "
                 "module is run. One key must always mean the same input. Likely causes: two data "
                 "sets under the same keys, such as a training and a validation set that both use "
                 "their index (give each a prefix or a scope of its own), or inputs that were "
                 "augmented before the cached module (augment after it, or put the variant into "
                 "the key). Where that is what you want, set match=\"shape\"");
    return;
  }
  log_once(LogLevel::kWarning, "key-conflict:" + request.context->scope,
           key + "was stored for an input " + std::string(signature) +
               " and is now asked for with " + std::string(request.signature) +
               ": the entry is replaced. One key must always mean the same input; inputs padded "
               "to different lengths are a likely cause (pad to a fixed length, put the length "
               "into the key, or set match=dtype or match=none)");
}

EntryPtr Session::find_and_count(const Digest128& address, const Request& request, bool may_write,
                                 bool* is_conflict) {
  Found found = find(address, request, may_write);
  const bool is_accepted = found.entry != nullptr && accepts(request, *found.entry);
  if (is_conflict != nullptr) *is_conflict = found.entry != nullptr && !is_accepted;
  if (!is_accepted) return nullptr;
  count_hits(request.context->scope, found.counter, 1, found.entry->run_us.value_or(0));
  return std::move(found.entry);
}

EntryPtr Session::lookup(const Request& given, bool may_write, SingleFlight::Lead& lead,
                         bool* is_conflict) {
  const Request request = asked(given);
  const Digest128 address = address_of(request.id());
  while (true) {
    const std::uint64_t landings = flights_.landings();
    if (EntryPtr entry = find_and_count(address, request, may_write, is_conflict)) return entry;
    if (!may_write) return nullptr;
    SingleFlight::Entered entered = flights_.enter(address);
    lead = std::move(entered.lead);
    if (entered.look_again) continue;
    // A run that landed between the look and the lead may have been this key's.
    if (!lead.is_held() || flights_.landings() == landings) return nullptr;
    EntryPtr entry = find_and_count(address, request, may_write, is_conflict);
    if (entry != nullptr) {
      lead.stored();
      lead.give_up();
    }
    return entry;
  }
}

EntryPtr Session::recall(const Request& given, bool (*wanted)(const Entry&)) {
  const Request request = asked(given);
  EntryPtr entry = find_in_memory(address_of(request.id()), request, MemoryTier::OnMiss::kIgnore);
  // Most that is not wanted is known without reading the input.
  if (entry == nullptr || !wanted(*entry) ||
      !matches(request, entry->signature, entry->sample.bytes())) {
    return nullptr;
  }
  count_hits(request.context->scope, Counter::kHitsMemory, 1, entry->run_us.value_or(0));
  return entry;
}

bool Session::store(const Request& request, EntryPtr entry, bool replaces) {
  // What is there must not outlive a newer result, however quickly that was computed.
  const bool is_quick = entry->run_us.has_value() && *entry->run_us < settings_.min_run_us;
  if (is_quick && !contains(request)) return false;
  const Digest128 address = address_of(request.id());
  const std::uint64_t removals = disk_->removals(DiskTier::Access::kWrite);
  const store::Sequence sequence = disk_->put(request.id(), *entry, replaces);
  entry = moved_to_place(request.context->scope, std::move(entry));
  // Replacing an entry counts as a removal, so `removals` from before the put only makes the
  // next lookup compare once more.
  const std::uint64_t size_bytes = MemoryTier::size_bytes_of(*entry, request.key);
  const bool is_in_memory = memory_->put(address, request.context, request.key,
                                         MemoryTier::Held{std::move(entry), sequence, removals});
  if (is_in_memory || sequence != 0) {
    stats_.add(Counter::kStored);
  } else {
    count_not_kept(1, size_bytes);
  }
  return true;
}

// The directory, where there is one, counts for itself.
void Session::count_not_kept(std::int64_t entries, std::uint64_t largest_bytes) {
  if (settings_.disk_bytes > 0) return;
  stats_.add(Counter::kNotKept, entries);
  if (settings_.memory_bytes == 0 || largest_bytes <= settings_.memory_bytes) return;
  log_once(LogLevel::kWarning, "too-large-for-memory",
           "a result takes " + std::to_string(largest_bytes) +
               " bytes, more than all of memory may (option memory: " +
               std::to_string(settings_.memory_bytes) +
               "), and there is no directory (disk=0): such results are not kept; raise 'memory' "
               "or 'disk'");
}

EntryPtr Session::moved_to_place(const std::string& scope, EntryPtr entry) const {
  const Place place = places_.of(scope);
  if (place.is_host() || settings_.memory_bytes == 0) return entry;
  Entry moved = *entry;
  moved.value = format_.moved(std::move(moved.value), place);
  if (moved.value == entry->value) return entry;
  return std::make_shared<const Entry>(std::move(moved));
}

EntryPtr Session::peek(const Request& request) {
  EntryPtr entry = find_in_memory(address_of(request.id()), request, MemoryTier::OnMiss::kIgnore);
  if (entry == nullptr) entry = disk_->get(request.id(), DiskTier::Access::kRead).entry;
  if (entry == nullptr || !accepts(request, *entry)) return nullptr;
  return entry;
}

std::optional<Sighting> Session::look(const Request& request) {
  auto seen = disk_->look(request.id());
  if (const EntryPtr held =
          find_in_memory(address_of(request.id()), request, MemoryTier::OnMiss::kIgnore)) {
    if (!seen.has_value()) seen.emplace();
    seen->is_in_memory = true;
    seen->signature = held->signature;
    seen->sample = held->sample;
    seen->size_bytes = static_cast<std::int64_t>(held->value->size_bytes());
    seen->run_us = held->run_us.value_or(0);
  }
  if (seen.has_value()) {
    seen->matches = matches(request, seen->signature, seen->sample.bytes());
  }
  return seen;
}

bool Session::contains(const Request& request) {
  const Digest128 address = address_of(request.id());
  return find_in_memory(address, request, MemoryTier::OnMiss::kIgnore) != nullptr ||
         disk_->contains(request.id());
}

std::optional<std::string> Session::find_note(std::string_view about, Mode mode) {
  if (!may_read(mode)) return std::nullopt;
  return disk_->find_note(about, access(may_write(mode)));
}

void Session::keep_note(std::string_view about, std::string_view text, Mode mode) {
  if (may_write(mode)) disk_->keep_note(about, text);
}

}  // namespace modcache::cache
