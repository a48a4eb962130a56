// SPDX-License-Identifier: Apache-2.0
//
// TrafficGate: what becomes of a key under admission=second, decided once for each call and before
// any tier is asked, so that one decision holds for all of them.
//
//  - A key that was asked for before, of late (policy/sightings.h), is looked up, and the result of
//    its run is stored.
//  - A key that was not is looked up, and the result of its run is not stored, unless other threads
//    wait for it by then: they asked for it, too.
//  - While fewer than 1 % of the last 4096 keys of a scope were asked for before, or found, its
//    gate is closed: keys that were not asked for before pass by, without a look-up. Those of a
//    fixed sample, one in 64 by their address, are looked up all the same: what is stored already,
//    by an earlier process or by another one, is found among them.
//
// The gate opens again once 64 keys of one window were asked for before, of which a key of the
// sample that was found counts for 16. Even while it is closed, a key passes by once at most as
// long as it is remembered.
//
// Where a call may only read (mode `read`) nothing would be there at a second sight, so only keys
// that are found count, and others may pass by again and again.
//
// It is a matter of cost alone: a wrong decision stores too much or too little. Thread-safe without
// a lock; usable in a forked child.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/hash.h"
#include "cache/scope_table.h"
#include "policy/sightings.h"

namespace modcache::cache {

enum class Passage : std::uint8_t {
  kStore,        // looked up; what it misses is stored
  kLookUp,       // looked up; what it misses is stored only if other threads wait for it
  kPassBy,       // neither
  kSwitchedOff,  // neither, for the whole scope (verify_watch.h)
};
// Returns whether the call has no part in the cache.
constexpr bool goes_past(Passage passage) { return passage >= Passage::kPassBy; }

class TrafficGate {
 public:
  static constexpr std::uint32_t kWindow = 4096;
  static constexpr std::uint32_t kFewestRepeated = kWindow / 100;
  static constexpr std::uint32_t kEnoughRepeated = 64;
  static constexpr std::uint32_t kWeightOfFound = 16;
  static constexpr std::uint64_t kSampleOneIn = 64;

  struct Question {
    std::string_view scope;
    Digest128 address;
    bool may_store;
  };

  // Call it before the first question, and not beside others.
  void prepare();
  // Everything is learned anew. REQUIRES: prepare() was called, or nothing was asked yet.
  void forget();

  // Notes that a call asks for the key. Once for each call.
  Passage ask(const Question& question);
  // So many keys of a call were found for which ask() said kLookUp.
  void note_found(std::string_view scope, std::uint32_t keys);

  // Returns whether ask() would let the key pass by. Notes nothing.
  bool would_pass_by(const Question& question);
  // The key was found, and ask() was not called.
  void note_hit(const Question& question);

  bool is_closed(std::string_view scope);

 private:
  struct Traffic {
    std::atomic<std::uint32_t> asked{0};
    std::atomic<std::uint32_t> repeated{0};  // of the keys of this window
    std::atomic<bool> is_closed{false};
  };

  static bool is_in_sample(const Digest128& address) { return address.high % kSampleOneIn == 0; }
  static void count(Traffic& traffic, std::uint32_t keys, std::uint32_t repeated);

  std::unique_ptr<policy::Sightings> sightings_;
  ScopeTable<Traffic> scopes_;
};

// While it lives, the results of the calling thread's calls are stored whatever the gate would say:
// for a pass over data that is made to store it. Guards nest.
class [[nodiscard]] StoreAllGuard {
 public:
  StoreAllGuard() : previous_(store_all_here(true)) {}
  ~StoreAllGuard() { store_all_here(previous_); }
  StoreAllGuard(const StoreAllGuard&) = delete;
  StoreAllGuard& operator=(const StoreAllGuard&) = delete;

  // The two halves of a guard, for callers that cannot hold one: sets it, and returns what it was.
  static bool store_all_here(bool stores_all);
  static bool stores_all_here();

 private:
  const bool previous_;
};

}  // namespace modcache::cache
