// SPDX-License-Identifier: Apache-2.0
#include "policy/auto.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace modcache::policy {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr std::uint32_t kMaxCount = FrequencySketch::kMaxCount;
// Enough to remember the keys of a dataset of about ten times the capacity.
constexpr std::uint64_t kBucketsPerEntry = 4;
constexpr std::uint32_t kMinBuckets = 64;
constexpr std::uint64_t kMaxCapacity = std::uint64_t{1} << 32;
constexpr Tick kMaxPeriod = Tick{1} << 30;
// Ages are averaged over about this many sampled uses. Capacity lookups have at most as many
// samples, so an average spans at least one epoch, whatever the capacity is.
constexpr std::int64_t kSampledUses = 128;
constexpr std::uint64_t kAgesPerTick = 256;
constexpr std::uint64_t kMaxAge = kAgesPerTick << 32;

std::uint64_t load_age(const std::atomic<std::uint64_t>& age) {
  return std::min(age.load(kRelaxed), kMaxAge);
}

// Returns a pseudo-random number below `end`.
std::uint64_t random_below(std::uint64_t end, std::uint64_t seed) {
  const std::uint64_t mixed = (seed ^ seed >> 32) * 0xd6e8feb86659fd93U;
  return (mixed >> 32) * end >> 32;
}

std::shared_ptr<AutoState> state_in(void* shared_state) {
  if (shared_state != nullptr) return {static_cast<AutoState*>(shared_state), [](AutoState*) {}};
  // Zeros from calloc: most pages of the state of a small tier are never touched.
  constexpr std::size_t kAlignment = alignof(AutoState);
  void* const bytes = std::calloc(1, sizeof(AutoState) + kAlignment);  // NOLINT: freed below
  if (bytes == nullptr) throw std::bad_alloc();
  const std::shared_ptr<void> owner(bytes, std::free);
  void* aligned = bytes;
  std::size_t size_bytes = sizeof(AutoState) + kAlignment;
  std::align(kAlignment, sizeof(AutoState), aligned, size_bytes);
  return {owner, static_cast<AutoState*>(aligned)};
}

}  // namespace

Auto::Auto(void* shared_state) : state_(state_in(shared_state)) {}

FrequencySketch Auto::sketch() const {
  const std::uint32_t buckets = std::clamp<std::uint32_t>(state_->buckets.load(kRelaxed),
                                                          kMinBuckets, AutoState::kMaxBuckets);
  return {state_->sketch.data(), std::bit_floor(buckets)};
}

void Auto::saw(std::uint64_t hash, bool was_found) {
  if (!was_found) sketch().add(hash);
}

void Auto::set_capacity(std::uint64_t entries) {
  if (state_->capacity.load(kRelaxed) == entries) return;
  state_->capacity.store(entries, kRelaxed);
  const auto wanted = static_cast<std::uint32_t>(
      std::bit_ceil(std::clamp<std::uint64_t>(entries, kMinBuckets / kBucketsPerEntry,
                                              AutoState::kMaxBuckets / kBucketsPerEntry) *
                    kBucketsPerEntry));
  // Keys change their buckets with the size, so it is not changed for a little.
  const std::uint32_t buckets = state_->buckets.load(kRelaxed);
  if (wanted > buckets || wanted < buckets / 4) state_->buckets.store(wanted, kRelaxed);
}

void Auto::advance(Tick now) {
  const std::uint64_t capacity = this->capacity();
  if (capacity == 0) return;
  const auto length = static_cast<Tick>(
      std::min<std::uint64_t>(capacity, kMaxPeriod / kLookupsPerPeriod) * kLookupsPerPeriod);
  Tick began_at = state_->period_began_at.load(kRelaxed);
  const Tick passed = now - began_at;
  if (passed < length) return;
  // After `now` it began for another thread, or the number is damaged.
  const bool is_ahead = passed > 2 * kMaxPeriod;
  const Tick next = is_ahead ? now : now - passed % length;
  if (!state_->period_began_at.compare_exchange_strong(began_at, next, kRelaxed) || is_ahead)
    return;
  const std::uint32_t periods = passed / length;
  state_->period.fetch_add(periods, kRelaxed);
  sketch().age(std::min(periods, 4U));
}

std::uint64_t Auto::capacity() const {
  return std::min(state_->capacity.load(kRelaxed), kMaxCapacity);
}

std::uint8_t Auto::period() const {
  return static_cast<std::uint8_t>(state_->period.load(kRelaxed));
}

// The sketch rounds down and entries round up. Otherwise keys that are equally frequent could
// differ by two, because some were seen before the halving and some after it.
std::uint32_t Auto::aged_count(Usage usage) const {
  const auto periods = static_cast<std::uint8_t>(period() - usage.period);
  const std::uint32_t shift = std::min<std::uint32_t>(periods, 4);
  return (std::min<std::uint32_t>(usage.count, kMaxCount) + (1U << shift) - 1) >> shift;
}

std::uint64_t Auto::patience() const {
  const std::uint64_t capacity = this->capacity();
  if (capacity == 0) return ~Tick{0};  // unknown: nothing is too old
  const std::uint64_t average = load_age(state_->average_age);
  const std::uint64_t largest = load_age(state_->largest_age);
  if (average == 0 || largest == 0) return capacity * kMaxPatience;
  return std::clamp(std::min(2 * average, largest + largest / 4) / kAgesPerTick,
                    capacity * kMinPatience, capacity * kMaxPatience);
}

// An entry that is in use is worth 1 at least, however long a period is.
std::uint32_t Auto::frequency(Usage usage, Tick now) const {
  return age_of(usage, now) > patience() ? 0 : std::max(aged_count(usage), 1U);
}

bool Auto::may_replace(Usage victim, std::uint64_t hash, Tick now) {
  advance(now);
  const std::uint32_t frequency = this->frequency(victim, now);
  if (frequency == 0 && random_below(kOneIn, hash + now) == 0) return true;
  return sketch().count(hash) >= frequency + kMinLead;
}

Usage Auto::inserted(std::uint64_t hash, Tick now) {
  advance(now);
  const std::uint32_t count = std::max(sketch().count(hash), 1U);
  return {now, static_cast<std::uint8_t>(count), period(), 0};
}

Usage Auto::used(Usage usage, Tick now) const {
  learn_age(age_of(usage, now), now);
  usage.count = static_cast<std::uint8_t>(std::min(aged_count(usage) + 1, kMaxCount));
  usage.period = period();
  usage.used_at = now;
  return usage;
}

// Learns from a sample of the uses, so that processes do not all write to one cache line at each.
void Auto::learn_age(Tick age, Tick now) const {
  const std::uint64_t capacity = this->capacity();
  if (capacity == 0 || random_below(capacity, now) >= kSampledUses) return;
  const std::uint64_t latest = age * kAgesPerTick;
  // The first ages of a shuffled epoch are small.
  const std::uint64_t first = std::max(latest, 2 * capacity * kAgesPerTick);
  const auto move = [&](std::atomic<std::uint64_t>& moved, bool to_larger_at_once) {
    const std::uint64_t known = load_age(moved);
    const auto difference = static_cast<std::int64_t>(latest) - static_cast<std::int64_t>(known);
    const bool is_at_once = to_larger_at_once && difference > 0;
    const std::uint64_t next = known + (is_at_once ? difference : difference / kSampledUses);
    moved.store(known == 0 ? first : next, kRelaxed);
  };
  move(state_->average_age, false);
  move(state_->largest_age, true);
}

// Among equally frequent entries the one that was used longest ago is evicted first.
std::uint32_t Auto::rank(Usage usage, Tick now) const {
  constexpr std::uint32_t kMaxRecency = (1U << 27) - 1;
  const std::uint32_t recency = kMaxRecency - std::min(age_of(usage, now), kMaxRecency);
  return frequency(usage, now) << 27 | recency;
}

void Auto::evicted(std::uint64_t hash, Usage usage) {
  const std::uint32_t count = aged_count(usage);
  const std::uint32_t known = sketch().count(hash);
  if (count > known) sketch().add(hash, count - known);
}

}  // namespace modcache::policy
