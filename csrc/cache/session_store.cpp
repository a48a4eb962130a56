// SPDX-License-Identifier: Apache-2.0
//
// Session: what it stores, and what it notes.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "cache/session.h"

namespace modcache::cache {
namespace {

thread_local bool admits_all_here = false;

}  // namespace

bool Session::set_admits_all(bool admits_all) { return std::exchange(admits_all_here, admits_all); }

bool Session::admits(const Request& request, const SingleFlight::Lead& lead) {
  if (seen_ == nullptr || admits_all_here) return true;
  const Digest128 address = store::address_of(request.context->digest, request.key);
  return seen_->add(address.low) || lead.is_awaited(address);
}

bool Session::bypasses(const std::string& scope, std::size_t keys) {
  if (!verified_.is_switched_off(scope)) return false;
  stats_.add(scope, Counter::kBypassedVerify, static_cast<std::int64_t>(keys));
  return true;
}

bool Session::store(const Request& request, const EntryPtr& entry, bool replaces) {
  return store_all(request.context, std::span<const std::string_view>(&request.key, 1),
                   std::span<const EntryPtr>(&entry, 1), replaces) == 1;
}

std::size_t Session::store_all(const ContextPtr& context, std::span<const std::string_view> keys,
                               std::span<const EntryPtr> entries, bool replaces) {
  if (keys.empty()) return 0;
  const OneOrMany<Digest128> addresses = store::addresses_of(context->digest, keys);
  const TierKeys all{context, keys, addresses};
  if (settings_.min_run_us > 0) return store_those_worth_it(all, entries, replaces);
  store_in_tiers(all, entries, replaces);
  return keys.size();
}

// An entry that is there must not outlive a newer result, however quickly that was computed. The
// server is not asked: what a look-up passed by there is as good.
std::size_t Session::store_those_worth_it(const TierKeys& all, std::span<const EntryPtr> entries,
                                          bool replaces) {
  std::vector<std::string_view> keys;
  std::vector<Digest128> addresses;
  std::vector<EntryPtr> worthy;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& run_us = entries[i]->run_us;
    const bool is_quick = run_us.has_value() && *run_us < settings_.min_run_us;
    if (is_quick && !replaces && !is_nearer_than(first_far(), all.id(i))) continue;
    keys.push_back(all.keys[i]);
    addresses.push_back(all.addresses[i]);
    worthy.push_back(entries[i]);
  }
  if (!keys.empty()) store_in_tiers({all.context(), keys, addresses}, worthy, replaces);
  return keys.size();
}

void Session::store_in_tiers(const TierKeys& keys, std::span<const EntryPtr> entries,
                             bool replaces) {
  OneOrMany<EntryPtr> handed(entries.size());
  std::copy(entries.begin(), entries.end(), handed.begin());
  OneOrMany<Kept> kept(keys.size());
  const auto& tiers = tiers_.nearest_first;
  for (auto tier = tiers.rbegin(); tier != tiers.rend(); ++tier) {
    (*tier)->store(keys, handed, replaces, kept);
  }
  count_kept(keys, entries, kept);
}

// A directory, where there is one, counts for itself what it does not keep.
void Session::count_kept(const TierKeys& keys, std::span<const EntryPtr> entries,
                         std::span<const Kept> kept) {
  std::int64_t not_kept = 0;
  std::uint64_t largest_bytes = 0;
  std::uint64_t kept_bytes = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].is_kept) kept_bytes += entries[i]->value->payload_size_bytes();
    if (kept[i].is_kept) continue;
    ++not_kept;
    largest_bytes = std::max<std::uint64_t>(largest_bytes,
                                            MemoryStore::size_bytes_of(*entries[i], keys.keys[i]));
  }
  const std::string& scope = keys.context()->scope;
  const std::array<Stats::Addition, 2> additions{
      Stats::addition(Counter::kStored, static_cast<std::int64_t>(kept.size()) - not_kept),
      Stats::addition(Counter::kStoredBytes, static_cast<std::int64_t>(kept_bytes))};
  stats_.add(scope, {additions.data(), additions.size()});
  if (not_kept == 0 || settings_.disk_bytes > 0) return;
  stats_.add(scope, Counter::kNotKept, not_kept);
  if (settings_.memory_bytes == 0 || largest_bytes <= settings_.memory_bytes) return;
  log_once(LogLevel::kWarning, "too-large-for-memory",
           "a result takes " + std::to_string(largest_bytes) +
               " bytes, more than all of memory may (option memory: " +
               std::to_string(settings_.memory_bytes) +
               "), and there is no directory (disk=0): such results are not kept; raise 'memory' "
               "or 'disk'");
}

void Session::note_conflict(const Request& request, std::string_view signature,
                            std::int64_t stored_at_us) {
  stats_.add(request.context->scope, Counter::kKeyConflicts);
  warn_of_conflict(request.key, request.context->scope, request.signature, signature);
  if (match_.fits_signature(request.signature, signature)) {
    conflicts_.record_conflict(request.context->scope, stored_at_us);
  }
}

void Session::note_verified(const Request& request, const std::string& who,
                            std::string_view difference, bool may_write) {
  if (!difference.empty()) {
    const store::EntryId id = request.id();
    // The farthest first, so that nothing comes back from there meanwhile.
    for (auto tier = tiers_.nearest_first.rbegin(); tier != tiers_.nearest_first.rend(); ++tier) {
      (*tier)->drop(id, access(may_write));
    }
  }
  verified_.note({request.context->scope, who, request.key, difference});
}

void Session::note_conflict_in_batch(const Request& request, std::size_t rows) {
  stats_.add(request.context->scope, Counter::kKeyConflicts, static_cast<std::int64_t>(rows));
  warn_of_conflict(request.key, request.context->scope, request.signature, request.signature);
  for (std::size_t i = 0; i < rows; ++i) {
    conflicts_.record_conflict(request.context->scope, now_us());
  }
}

std::optional<std::string> Session::find_note(std::string_view about, Mode mode) {
  if (!may_read(mode)) return std::nullopt;
  return tiers_.disk->find_note(about, access(may_write(mode)));
}

void Session::keep_note(std::string_view about, std::string_view text, Mode mode) {
  if (may_write(mode)) tiers_.disk->keep_note(about, text);
}

}  // namespace modcache::cache
