// SPDX-License-Identifier: Apache-2.0
//
// Cache: lookups, and storing results.
#include "cache/cache.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"

namespace modcache::cache {
namespace {

Access access_of(bool may_write) { return may_write ? Access::kWrite : Access::kRead; }

thread_local bool admits_all_here = false;

}  // namespace

Found Cache::lookup(const Keys& keys, const LookupOptions& options) {
  Found found(keys.size());
  const std::uint64_t completed_runs = in_flight_.completed_runs();
  search(keys, options, found);
  if (options.may_sample) sample_hits(keys, found);
  if (options.will_run && found.has_missing()) enter_runs(keys, options, completed_runs, found);
  return found;
}

void Cache::search(const Keys& keys, const LookupOptions& options, Found& found) {
  const auto& tiers = keys.configuration->tiers.nearest_first;
  const OnMiss on_miss =
      options.is_silent || !options.notes_misses ? OnMiss::kIgnore : OnMiss::kCount;
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    if (tiers[tier]->is_far() && !options.asks_server) break;
    if (!found.choose_keys_for(tier)) break;
    const bool stores_nearer = tiers[tier]->is_far() && options.may_write && !options.is_silent;
    if (stores_nearer) found.asked_at_ = keys.configuration->tiers.disk->now(Access::kRead);
    if (found.asks_for_all()) {
      tiers[tier]->find(keys, access_of(options.may_write), on_miss, found);
    } else {
      tiers[tier]->find(found.asked(keys), access_of(options.may_write), on_miss, found);
    }
    found.note_found();
    check_inputs(keys, tier, options, found);
    if (stores_nearer) store_rows_nearer(keys, tier, found);
  }
  if (found.rows_.size() == 0) return;
  if (options.reads_values) read_values(keys, options, found);
  if (!options.is_silent) bring_to_device(keys, found);
}

// An entry of another input is a conflict. The tiers behind are not asked for its key.
void Cache::check_inputs(const Keys& keys, std::size_t tier, const LookupOptions& options,
                         Found& found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_found(i) || found.items_[i].tier != tier) continue;
    const Entry* const entry = found.held_[i].entry.get();
    const std::string_view sample =
        entry != nullptr ? entry->sample.bytes() : found.rows_.sample(found.row(i));
    if (is_same_input(keys, i, found.signature(i), sample)) continue;
    found.items_[i].state = Found::State::kConflict;
    if (options.is_silent || !options.notes_misses) continue;
    count_conflict(keys, i, found.signature(i),
                   entry != nullptr ? entry->stored_at_us : found.rows_.stored_at_us(found.row(i)));
  }
}

// An empty signature or sample, of either, matches any.
bool Cache::is_same_input(const Keys& keys, std::size_t i, std::string_view signature,
                          std::string_view sample) const {
  if (keys.configuration->settings.match == Match::kNone) return true;
  const std::string_view given = keys.signature_of(i);
  if (!given.empty() && !signature.empty() && given != signature) return false;
  return keys.input == nullptr || sample.empty() ||
         keys.input->measure(keys.input_row(i)).matches(sample);
}

void Cache::count_hits(const Keys& keys, const Found& found, bool may_write) {
  const auto& tiers = keys.configuration->tiers.nearest_first;
  std::array<HitCounts, Found::kMaxTiers> counts;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found.is_found(i)) continue;
    HitCounts& of_tier = counts[found.items_[i].tier];
    const Entry* const entry = found.held_[i].entry.get();
    ++of_tier.hits;
    of_tier.saved_us +=
        entry != nullptr ? entry->run_us.value_or(0) : found.rows_.run_us(found.row(i));
    of_tier.bytes +=
        static_cast<std::int64_t>(entry != nullptr ? entry->value->payload_size_bytes()
                                                   : found.rows_.payload_size_bytes(found.row(i)));
  }
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    if (counts[tier].hits == 0) continue;
    counts[tier].tier = tiers[tier]->hits();
    stats_.add_hits(*keys.context(), counts[tier], may_write);
    conflicts_.record_matches(keys.context()->scope, counts[tier].hits);
  }
}

// The right to run the missing keys that no other thread runs.
void Cache::enter_runs(const Keys& keys, const LookupOptions& options, std::uint64_t completed_runs,
                       Found& found) {
  const std::vector<std::size_t> missing = found.missing();
  OneOrMany<Digest128> addresses(missing.size());
  for (std::size_t place = 0; place < missing.size(); ++place) {
    addresses[place] = keys.addresses[missing[place]];
  }
  std::vector<bool> is_led;
  found.lead = in_flight_.try_enter_all(addresses, is_led);
  for (std::size_t place = 0; place < missing.size(); ++place) {
    (is_led[place] ? found.led : found.awaited).push_back(missing[place]);
  }
  if (found.led.empty() || in_flight_.completed_runs() == completed_runs) return;
  // A run that ended since may have stored one of them. Results of this process are near. What was
  // a conflict is one again, and is not told twice.
  LookupOptions near = options;
  near.asks_server = false;
  near.notes_misses = false;
  const Keys led = keys.only(found.led);
  Found again(led.size());
  search(led, near, again);
  if (options.may_sample) sample_hits(led, again);
  if (again.missing().size() < led.size()) found.lead.stored();
  found.take(std::move(again));
  if (found.led.empty()) found.lead.give_up();
}

SingleFlight::Waited Cache::wait_for(const Keys& keys) {
  return in_flight_.wait_all(keys.addresses, run_times_.patience(keys.context()->scope));
}

void Cache::sample_hits(const Keys& keys, Found& found) {
  const double share = keys.configuration->settings.verify_share;
  if (share == 0) return;
  const std::vector<std::size_t> hits = found.places_of({Found::State::kFound});
  for (const std::size_t place : HitDraw::chosen(share, hits.size())) {
    found.items_[hits[place]].state = Found::State::kSampled;
  }
}

void Cache::refuse(const Keys& keys, Found& found, std::size_t i, const Status& broken,
                   bool may_write) {
  if (!found.is_found(i)) return;
  const bool is_row = found.is_row(i);
  found.items_[i].state = Found::State::kMissing;
  if (!is_row) return;
  const Found::Item item = found.items_[i];
  keys.configuration->tiers.nearest_first[item.tier]->refuse(
      keys.id(i), found.rows_.sequence(item.row), broken, access_of(may_write));
}

void Cache::refuse_as_conflict(const Keys& keys, Found& found, std::size_t i) {
  if (!found.is_found(i)) return;
  stats_.add(keys.context()->scope, Counter::kKeyConflicts);
  warn_of_conflict(keys.keys[i], keys.context()->scope, keys.signature_of(i), found.signature(i));
  found.items_[i].state = Found::State::kConflict;
}

EntryPtr Cache::find_to_compare(const Keys& keys) {
  LookupOptions options;
  options.reads_values = true;
  options.is_silent = true;
  Found found(1);
  search(keys, options, found);
  if (found.is_found(0)) return found.entry(0);
  if (found.items_[0].state == Found::State::kConflict) {
    count_conflict(keys, 0, found.signature(0), /*stored_at_us=*/0);
  }
  return nullptr;
}

std::vector<std::optional<EntryInfo>> Cache::inspect(const Keys& keys, bool asks_server) {
  const auto& tiers = keys.configuration->tiers.nearest_first;
  LookupOptions options;
  options.asks_server = asks_server;
  options.is_silent = true;
  Found found(keys.size());
  search(keys, options, found);
  std::vector<std::optional<EntryInfo>> infos(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Found::Item& item = found.items_[i];
    if (item.state == Found::State::kMissing) continue;
    EntryInfo& info = infos[i].emplace();
    info.matches = item.state == Found::State::kFound;
    info.signature = std::string(found.signature(i));
    if (const Entry* const entry = found.held_[i].entry.get()) {
      info.is_in_memory = true;
      info.sample = entry->sample;
      info.size_bytes = static_cast<std::int64_t>(entry->value->size_bytes());
      info.run_us = entry->run_us.value_or(0);
      if (entry->stored_at_us != kAgeless) info.stored_at_us = entry->stored_at_us;
    } else {
      info.is_remote = tiers[item.tier]->is_far();
      info.sample = InputSample(found.rows_.sample(item.row));
      info.size_bytes = static_cast<std::int64_t>(found.rows_.payload_size_bytes(item.row));
      info.run_us = found.rows_.run_us(item.row);
      info.stored_at_us = found.rows_.stored_at_us(item.row);
    }
  }
  return infos;
}

bool Cache::bypasses(const std::string& scope, std::size_t keys) {
  if (!verified_.is_switched_off(scope)) return false;
  stats_.add(scope, Counter::kBypassedVerify, static_cast<std::int64_t>(keys));
  return true;
}

bool Cache::compares_input(const Configuration& configuration, const std::string& scope,
                           const InputSource& input) {
  if (configuration.settings.match != Match::kInput) return false;
  return !input.is_costly() || conflicts_.samples_costly_input(scope);
}

InputSample Cache::sample_to_store(const Configuration& configuration, const InputSource& input,
                                   std::size_t row) {
  const bool is_wanted = !input.is_costly() || configuration.settings.match == Match::kInput;
  return is_wanted ? input.measure(row).sample() : InputSample();
}

void Cache::count_conflict(const Keys& keys, std::size_t i, std::string_view signature,
                           std::int64_t stored_at_us) {
  const std::string& scope = keys.context()->scope;
  const std::string_view given = keys.signature_of(i);
  stats_.add(scope, Counter::kKeyConflicts);
  warn_of_conflict(keys.keys[i], scope, given, signature);
  const bool has_same_shape = given.empty() || signature.empty() || given == signature;
  if (has_same_shape) conflicts_.record_conflict(scope, stored_at_us);
}

void Cache::note_conflict_in_batch(const Keys& keys, std::size_t i, std::size_t rows) {
  const std::string& scope = keys.context()->scope;
  stats_.add(scope, Counter::kKeyConflicts, static_cast<std::int64_t>(rows));
  warn_of_conflict(keys.keys[i], scope, keys.signature_of(i), keys.signature_of(i));
  for (std::size_t row = 0; row < rows; ++row) conflicts_.record_conflict(scope, now_us());
}

void Cache::note_compared(const Keys& keys, std::size_t i, const std::string& who,
                          std::string_view difference, bool may_write) {
  if (!difference.empty()) {
    // The farthest first, so that nothing comes back from there meanwhile.
    const auto& tiers = keys.configuration->tiers.nearest_first;
    for (auto tier = tiers.rbegin(); tier != tiers.rend(); ++tier) {
      (*tier)->drop(keys.id(i), access_of(may_write));
    }
  }
  verified_.note({keys.context()->scope, who, keys.keys[i], difference});
}

Generation Cache::begin_run(const Configuration& configuration, const std::string& scope,
                            bool may_write) {
  const Tiers& tiers = configuration.tiers;
  Generation generation;
  generation.in_process = generations_.of(scope);
  if (!may_write) return generation;
  generation.in_directory = tiers.disk->now(Access::kWrite);
  if (tiers.remote != nullptr) generation.on_server = tiers.remote->mark(scope);
  return generation;
}

bool Cache::was_cleared(const Keys& keys, std::size_t i, const Generation& since) {
  if (since.in_process != generations_.of(keys.context()->scope)) return true;
  return since.in_directory.has_value() &&
         keys.configuration->tiers.disk->was_cleared(keys.id(i), *since.in_directory);
}

bool Cache::set_admits_all(bool admits_all) { return std::exchange(admits_all_here, admits_all); }

bool Cache::admits(const Keys& keys, std::size_t i, const SingleFlight::Lead& lead) {
  const auto& seen = keys.configuration->seen;
  if (seen == nullptr || admits_all_here) return true;
  return seen->add(keys.addresses[i].low) || lead.is_awaited(keys.addresses[i]);
}

std::size_t Cache::store(const Keys& keys, std::span<const EntryPtr> entries,
                         const StoreOptions& options) {
  if (keys.size() == 0) return 0;
  const std::int64_t min_run_us = keys.configuration->settings.min_run_us;
  if (min_run_us == 0) return store_in_tiers(keys, entries, options);
  // An entry that is there must not outlive a newer result, however quickly that was computed. The
  // server is not asked.
  LookupOptions near;
  near.is_silent = true;
  near.asks_server = false;
  Found there(keys.size());
  if (!options.replaces) search(keys, near, there);
  std::vector<std::size_t> places;
  std::vector<EntryPtr> worthy;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto& run_us = entries[i]->run_us;
    const bool is_quick = run_us.has_value() && *run_us < min_run_us;
    if (is_quick && !options.replaces && !there.is_found(i)) continue;
    places.push_back(i);
    worthy.push_back(entries[i]);
  }
  return places.empty() ? 0 : store_in_tiers(keys.only(places), worthy, options);
}

std::size_t Cache::store_in_tiers(const Keys& keys, std::span<const EntryPtr> entries,
                                  const StoreOptions& options) {
  const std::string& scope = keys.context()->scope;
  const auto is_cleared = [&] {
    return options.since != nullptr && options.since->in_process != generations_.of(scope);
  };
  if (is_cleared()) return 0;
  OneOrMany<EntryPtr> stored(entries.size());
  std::copy(entries.begin(), entries.end(), stored.begin());
  OneOrMany<Kept> kept(keys.size());
  const auto& tiers = keys.configuration->tiers.nearest_first;
  for (auto tier = tiers.rbegin(); tier != tiers.rend(); ++tier) {
    (*tier)->store(keys, stored, options, kept);
  }
  // A clear that came meanwhile has covered the other tiers.
  if (is_cleared()) {
    tiers.front()->take_back(keys, kept);
    return 0;
  }
  return count_stored(keys, entries, kept);
}

// A directory, where there is one, counts for itself what it does not store.
std::size_t Cache::count_stored(const Keys& keys, std::span<const EntryPtr> entries,
                                const OneOrMany<Kept>& kept) {
  const Settings& settings = keys.configuration->settings;
  std::int64_t num_kept = 0;
  std::int64_t num_refused = 0;
  std::uint64_t largest_bytes = 0;
  std::uint64_t kept_bytes = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].is_cleared) continue;
    if (kept[i].is_kept) {
      ++num_kept;
      kept_bytes += entries[i]->value->payload_size_bytes();
      continue;
    }
    ++num_refused;
    largest_bytes = std::max<std::uint64_t>(largest_bytes,
                                            MemoryStore::size_bytes_of(*entries[i], keys.keys[i]));
  }
  const std::string& scope = keys.context()->scope;
  const std::array<Stats::Addition, 2> additions{
      Stats::addition(Counter::kStored, num_kept),
      Stats::addition(Counter::kStoredBytes, static_cast<std::int64_t>(kept_bytes))};
  stats_.add(scope, {additions.data(), additions.size()});
  const auto num_handled = static_cast<std::size_t>(num_kept + num_refused);
  if (num_refused == 0 || settings.disk_bytes > 0) return num_handled;
  stats_.add(scope, Counter::kNotKept, num_refused);
  if (settings.memory_bytes == 0 || largest_bytes <= settings.memory_bytes) return num_handled;
  log_once(LogLevel::kWarning, "too-large-for-memory",
           "a result takes " + std::to_string(largest_bytes) +
               " bytes, more than all of memory may (option memory: " +
               std::to_string(settings.memory_bytes) +
               "), and there is no directory (disk=0): such results are not stored; raise 'memory' "
               "or 'disk'");
  return num_handled;
}

std::optional<std::string> Cache::find_note(std::string_view about, Mode mode) {
  if (!may_read(mode)) return std::nullopt;
  return configuration()->tiers.disk->find_note(about, access_of(may_write(mode)));
}

void Cache::keep_note(std::string_view about, std::string_view text, Mode mode) {
  if (may_write(mode)) configuration()->tiers.disk->keep_note(about, text);
}

}  // namespace modcache::cache
