// SPDX-License-Identifier: Apache-2.0
//
// Found: what a lookup found for each of its keys: an entry in this process, or a row that is read
// where it lies, or nothing. It owns what keeps the bytes readable. Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/one_or_many.h"
#include "cache/found_rows.h"
#include "cache/keys.h"
#include "cache/single_flight.h"
#include "cache/value.h"
#include "store/store.h"

namespace modcache::cache {

class MarkOfWrite;

// An entry in this process, its sequence in the directory (0: it is not there), and the directory's
// count of removals up to which it is known to be current.
struct HeldEntry {
  EntryPtr entry;
  store::Sequence sequence = 0;
  std::uint64_t removals = 0;
};

// The moment at which a call began. A result is stored only if its scope was not cleared since: in
// this process, in the directory by any process, or on the server by any machine.
struct Generation {
  std::uint64_t in_process = 0;
  std::optional<store::Moment> in_directory;     // nullopt: it was not open
  std::shared_ptr<const MarkOfWrite> on_server;  // null: there is no server
};

class Found {
 public:
  static constexpr std::size_t kMaxTiers = 3;

  explicit Found(std::size_t size) : held_(size), items_(size) {}

  std::size_t size() const { return items_.size(); }

  // REQUIRES of what is asked about a single key: is_found(i).
  bool is_found(std::size_t i) const { return items_[i].state == State::kFound; }
  bool has_found() const {  // of any key
    return has_any([](State state) { return state == State::kFound; });
  }
  // The entry; null: it is a row of a directory or a server.
  const EntryPtr& entry(std::size_t i) const { return held_[i].entry; }
  bool is_row(std::size_t i) const { return is_found(i) && held_[i].entry == nullptr; }
  std::size_t row(std::size_t i) const { return items_[i].row; }  // of rows()
  const FoundRows& rows() const { return rows_; }
  // That of the input that the entry was computed from.
  std::string_view signature(std::size_t i) const {
    return held_[i].entry != nullptr ? std::string_view(held_[i].entry->signature)
                                     : std::string_view(rows_.header(items_[i].row).signature);
  }

  // The places of the keys that have to be run, in ascending order: nothing was found for them.
  std::vector<std::size_t> missing() const {
    return places_of({State::kMissing, State::kConflict});
  }
  bool has_missing() const {
    return has_any(
        [](State state) { return state == State::kMissing || state == State::kConflict; });
  }
  // Missing keys of which there is an entry of another input, which their results replace.
  std::vector<std::size_t> conflicts() const { return places_of({State::kConflict}); }
  // Keys that were found, and are to be run and compared with what is stored (verify_share).
  std::vector<std::size_t> sampled() const { return places_of({State::kSampled}); }

  // Lookups whose caller runs what is missing: the right to run `led`, and the missing keys that
  // other threads run. All are missing keys.
  SingleFlight::Lead lead;
  std::vector<std::size_t> led;
  std::vector<std::size_t> awaited;

  // For tiers: what they have of the keys that they were asked for.
  HeldEntry* held() { return held_.data(); }  // REQUIRES: asked for all
  // `still_holds`: returns whether nothing was cleared or replaced since the tier was asked; null:
  // nobody has to ask.
  void add_rows(FoundRows rows, std::function<bool()> still_holds = nullptr);

 private:
  friend class Cache;

  enum class State : std::uint8_t { kMissing, kFound, kConflict, kSampled };
  struct Item {
    State state = State::kMissing;
    std::uint8_t tier = 0;  // that has it, counted from the nearest
    std::uint32_t row = 0;
  };

  template <typename Condition>
  bool has_any(Condition condition) const {
    return std::any_of(items_.begin(), items_.end(),
                       [&](const Item& item) { return condition(item.state); });
  }
  std::vector<std::size_t> places_of(std::initializer_list<State> states) const;

  // The steps of a search: chooses the keys that this tier is asked for, those that no tier before
  // it has (false: there are none), and notes what it found.
  bool choose_keys_for(std::size_t tier);
  bool asks_for_all() const { return asked_.empty(); }
  Keys asked(const Keys& all) const { return all.only(asked_); }
  void note_found();
  // Takes what was found for the keys in `led`, of which those that are missing remain.
  void take(Found of_led);

  OneOrMany<HeldEntry> held_;  // of a row that a nearer tier has stored: its sequence there
  OneOrMany<Item> items_;
  FoundRows rows_;
  std::vector<std::size_t> asked_;         // empty: all
  std::uint8_t tier_ = 0;                  // that is asked
  std::size_t first_row_ = 0;              // of its rows
  bool has_new_rows_ = false;              // it added some
  bool is_outdated_ = false;               // what the server has must not be stored
  std::optional<store::Moment> asked_at_;  // when the server was asked; nullopt: no directory
  std::function<bool()> still_holds_;
};

}  // namespace modcache::cache
