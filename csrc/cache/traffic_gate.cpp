// SPDX-License-Identifier: Apache-2.0
#include "cache/traffic_gate.h"

#include <algorithm>

namespace modcache::cache {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

thread_local bool stores_all = false;

// A cost is what it takes when nothing else is in the way, so less counts at once, and more little
// by little, however much more: a thread may have lost its processor meanwhile. Threads that note
// at once may lose one of the two.
void follow(std::atomic<std::int64_t>& known, std::int64_t measured) {
  measured = std::max<std::int64_t>(measured, 1);
  const std::int64_t before = known.load(kRelaxed);
  const bool is_less = before == 0 || measured < before;
  known.store(is_less ? measured : before + std::min(measured - before, 3 * before) / 16, kRelaxed);
}

}  // namespace

void TrafficGate::prepare() {
  if (sightings_ == nullptr) sightings_ = std::make_unique<policy::Sightings>();
}

void TrafficGate::forget() {
  if (sightings_ == nullptr) return;
  sightings_->forget();
  scopes_.for_each([](Traffic& traffic) {
    traffic.asked.store(0, kRelaxed);
    traffic.repeated.store(0, kRelaxed);
    traffic.is_closed.store(false, kRelaxed);
    traffic.kept_out.store(0, kRelaxed);
    traffic.measured_stores.store(0, kRelaxed);
    for (auto* cost : {&traffic.lookup_ns, &traffic.store_ns, &traffic.store_bytes}) {
      cost->store(0, kRelaxed);
    }
  });
}

Passage TrafficGate::ask(const Question& question) {
  Traffic& traffic = scopes_.of(question.scope);
  const bool is_closed = traffic.is_closed.load(kRelaxed);
  const bool is_repeated = sightings_->note(question.address.low) && question.may_store;
  count(traffic, 1, is_repeated ? 1 : 0);
  if (is_repeated) return Passage::kStore;
  return is_closed && !is_in_sample(question.address) ? Passage::kPassBy : Passage::kLookUp;
}

void TrafficGate::note_found(std::string_view scope, std::uint32_t keys) {
  if (keys == 0) return;
  Traffic& traffic = scopes_.of(scope);
  count(traffic, 0, keys * (traffic.is_closed.load(kRelaxed) ? kWeightOfFound : 1));
}

bool TrafficGate::would_pass_by(const Question& question) {
  Traffic& traffic = scopes_.of(question.scope);
  if (!traffic.is_closed.load(kRelaxed) || is_in_sample(question.address)) return false;
  return !question.may_store || !sightings_->has(question.address.low);
}

void TrafficGate::note_hit(const Question& question) {
  Traffic& traffic = scopes_.of(question.scope);
  const bool is_repeated = sightings_->note(question.address.low) && question.may_store;
  const bool is_found_in_sample = !is_repeated && traffic.is_closed.load(kRelaxed);
  count(traffic, 1, is_found_in_sample ? kWeightOfFound : 1);
}

// A thread ends each window, which is the one that counts its last key.
void TrafficGate::count(Traffic& traffic, std::uint32_t keys, std::uint32_t repeated) {
  if (repeated != 0) {
    const std::uint32_t so_far = traffic.repeated.fetch_add(repeated, kRelaxed) + repeated;
    if (so_far >= kEnoughRepeated && traffic.is_closed.load(kRelaxed)) {
      traffic.asked.store(0, kRelaxed);
      traffic.is_closed.store(false, kRelaxed);
    }
  }
  if (keys == 0) return;
  if ((traffic.asked.fetch_add(1, kRelaxed) + 1) % kWindow != 0) return;
  const std::uint32_t of_window = traffic.repeated.exchange(0, kRelaxed);
  if (of_window < kFewestRepeated) traffic.is_closed.store(true, kRelaxed);
}

void TrafficGate::note_lookup(std::string_view scope, std::int64_t took_ns) {
  follow(scopes_.of(scope).lookup_ns, took_ns);
}

void TrafficGate::note_store(std::string_view scope, std::int64_t took_ns,
                             std::int64_t size_bytes) {
  Traffic& traffic = scopes_.of(scope);
  traffic.measured_stores.fetch_add(1, kRelaxed);
  follow(traffic.store_ns, took_ns);
  follow(traffic.store_bytes, size_bytes);
}

bool TrafficGate::is_worth_storing(std::string_view scope, std::int64_t run_us,
                                   std::int64_t size_bytes) {
  Traffic& traffic = scopes_.of(scope);
  const std::int64_t store_ns = traffic.store_ns.load(kRelaxed);
  if (traffic.measured_stores.load(kRelaxed) < kFirstMeasured) return true;
  const double of_usual_size =
      static_cast<double>(size_bytes) /
      static_cast<double>(std::max<std::int64_t>(traffic.store_bytes.load(kRelaxed), 1));
  const double to_store_ns = static_cast<double>(store_ns) * std::max(of_usual_size, 1.0);
  // As long as there was no hit, a look-up is taken to cost as much as a store.
  const std::int64_t lookup_ns = traffic.lookup_ns.load(kRelaxed);
  const double cost_ns =
      to_store_ns + (lookup_ns == 0 ? to_store_ns : static_cast<double>(lookup_ns));
  if (static_cast<double>(run_us) * 1e3 > cost_ns) return true;
  return traffic.kept_out.fetch_add(1, kRelaxed) % kMeasuresOneIn == kMeasuresOneIn - 1;
}

bool TrafficGate::is_closed(std::string_view scope) {
  return scopes_.of(scope).is_closed.load(kRelaxed);
}

bool StoreAllGuard::store_all_here(bool stores_all_now) {
  const bool before = stores_all;
  stores_all = stores_all_now;
  return before;
}

bool StoreAllGuard::stores_all_here() { return stores_all; }

}  // namespace modcache::cache
