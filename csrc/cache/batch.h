// SPDX-License-Identifier: Apache-2.0
//
// A batch: many keys of one context that go through the tiers together.
//
//     found = session->lookup_all(request, may_write)       hits, counted; found.missing()
//     lead = session->lead_rows(request, found)             which of those this thread shall run
//         run lead.led, and if session->store_all(...) kept any: lead.lead.stored()
//         lead.lead.give_up()                               before it waits for others
//     if (session->wait_for(request, lead.awaited)) ...     look those up again
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/single_flight.h"
#include "cache/value.h"

namespace modcache::cache {

struct BatchRequest {
  ContextPtr context;
  const std::vector<std::string_view>& keys;  // distinct, none empty; borrowed for each call
  std::string_view signature;                 // of every row's input; empty: matches any entry
  // Null: only the signature is known. Otherwise keys[i] comes with row (*rows)[i] of it.
  const InputSource* input = nullptr;
  const std::vector<std::size_t>* rows = nullptr;
};

// Where the rows of a batch were found, by their place in BatchRequest::keys.
class BatchFound {
 public:
  std::size_t size() const { return places_.size(); }

  bool is_missing(std::size_t i) const { return places_[i] == kMissing; }
  // In ascending order.
  std::vector<std::size_t> missing() const;

  // Missing rows of which there is an entry of another input: their results replace it.
  const std::vector<std::size_t>& conflicts() const { return conflicts_; }

  // Null: not from memory.
  EntryPtr in_memory(std::size_t i) const {
    return places_[i] == kInMemory ? entries_[i] : nullptr;
  }
  bool is_on_disk(std::size_t i) const { return places_[i] >= 0; }
  // Which row of disk() it is. REQUIRES: is_on_disk(i).
  std::size_t disk_row(std::size_t i) const { return static_cast<std::size_t>(places_[i]); }
  const FoundRows& disk() const { return disk_; }

 private:
  friend class Session;
  static constexpr std::int64_t kMissing = -1;
  static constexpr std::int64_t kInMemory = -2;

  std::vector<std::int64_t> places_;
  std::vector<EntryPtr> entries_;  // empty, or one for each key
  std::vector<std::size_t> conflicts_;
  FoundRows disk_;
  std::uint64_t landings_ = 0;  // of single flight, before the first look
};

struct BatchLead {
  SingleFlight::Lead lead;           // for all of `led`
  std::vector<std::size_t> led;      // rows to run; in ascending order
  std::vector<std::size_t> awaited;  // rows that other threads run; in ascending order
  // A run ended between the look and the lead, and may have been that of a row in `led`: look
  // them up once more before they are run.
  bool look_again = false;
};

}  // namespace modcache::cache
