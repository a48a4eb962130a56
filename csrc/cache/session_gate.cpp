// SPDX-License-Identifier: Apache-2.0
//
// Session: what it asks the gate, and tells it.
#include "cache/session.h"

namespace modcache::cache {

// Returns whether the gate has a say in the calls of this thread.
bool Session::has_admission() const {
  return settings_.admission != Admission::kAll && !StoreAllGuard::stores_all_here();
}

// Calls `ask` with the question for each key, until it returns false. Returns whether it never did.
template <typename Ask>
bool Session::ask_each(const BatchRequest& request, Mode mode, Ask ask) {
  const OneOrMany<Digest128> addresses = store::addresses_of(request.context->digest, request.keys);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (!ask(i, {request.context->scope, addresses[i], may_write(mode)})) return false;
  }
  return true;
}

// Under `strict` each call is judged, so none goes past.
OneOrMany<Passage> Session::ask_gate(const BatchRequest& request, Mode mode) {
  OneOrMany<Passage> passages(request.keys.size());
  for (Passage& passage : passages) passage = Passage::kStore;
  if (verified_.is_switched_off(request.context->scope)) {
    for (Passage& passage : passages) passage = Passage::kSwitchedOff;
    return passages;
  }
  if (!has_admission()) return passages;
  ask_each(request, mode, [&](std::size_t i, const TrafficGate::Question& question) {
    passages[i] = gate_.ask(question);
    if (settings_.strict && goes_past(passages[i])) passages[i] = Passage::kLookUp;
    return true;
  });
  return passages;
}

bool Session::goes_past_gate(const BatchRequest& request, Mode mode) {
  if (verified_.is_switched_off(request.context->scope)) {
    count_past(request.context->scope, Passage::kSwitchedOff,
               static_cast<std::int64_t>(request.keys.size()));
    return true;
  }
  if (settings_.strict || !has_admission()) return false;
  const bool goes_past =
      ask_each(request, mode, [&](std::size_t, const TrafficGate::Question& question) {
        return gate_.would_pass_by(question);
      });
  if (!goes_past) return false;
  ask_each(request, mode, [&](std::size_t, const TrafficGate::Question& question) {
    (void)gate_.ask(question);
    return true;
  });
  count_past(request.context->scope, Passage::kPassBy,
             static_cast<std::int64_t>(request.keys.size()));
  return true;
}

void Session::note_plain_hits(const BatchRequest& request, Mode mode) {
  if (!has_admission()) return;
  ask_each(request, mode, [&](std::size_t, const TrafficGate::Question& question) {
    gate_.note_hit(question);
    return true;
  });
}

// Keys that are brought will be asked for.
void Session::note_expected(const std::string& scope, std::span<const Digest128> addresses,
                            const std::vector<bool>& are_there) {
  if (!has_admission()) return;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (are_there[i]) gate_.note_hit({scope, addresses[i], /*may_store=*/true});
  }
}

void Session::note_found(const std::string& scope, std::size_t keys) {
  if (has_admission()) gate_.note_found(scope, static_cast<std::uint32_t>(keys));
}

void Session::count_past(const std::string& scope, Passage passage, std::int64_t keys) {
  stats_.add(
      scope,
      passage == Passage::kSwitchedOff ? Counter::kBypassedVerify : Counter::kBypassedAdmission,
      keys);
}

bool Session::is_awaited(const SingleFlight::Lead& lead, const Request& request) const {
  return lead.is_awaited(store::address_of(request.context->digest, request.key));
}

}  // namespace modcache::cache
