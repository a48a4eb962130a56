// SPDX-License-Identifier: Apache-2.0
#include "cache/traffic_gate.h"

namespace modcache::cache {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

thread_local bool stores_all = false;

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
