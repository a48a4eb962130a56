// SPDX-License-Identifier: Apache-2.0
#include "cache/found.h"

#include <algorithm>
#include <utility>

namespace modcache::cache {

Keys Keys::only(const std::vector<std::size_t>& places) const {
  Keys some(context_);
  some.keys = OneOrMany<std::string_view>(places.size());
  some.addresses = OneOrMany<Digest128>(places.size());
  some.configuration = configuration;
  some.signature = signature;
  some.input = input;
  some.form = form;
  for (std::size_t i = 0; i < places.size(); ++i) {
    some.keys[i] = keys[places[i]];
    some.addresses[i] = addresses[places[i]];
    some.input_rows.push_back(input_row(places[i]));
    if (!signatures.empty()) some.signatures.push_back(signatures[places[i]]);
  }
  return some;
}

std::vector<std::size_t> Found::places_of(std::initializer_list<State> states) const {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (std::find(states.begin(), states.end(), items_[i].state) != states.end()) {
      places.push_back(i);
    }
  }
  return places;
}

bool Found::choose_keys_for(std::size_t tier) {
  tier_ = static_cast<std::uint8_t>(tier);
  has_new_rows_ = false;
  asked_.clear();
  if (tier == 0) return true;
  if (!has_any([](State state) { return state == State::kMissing; })) return false;
  asked_ = places_of({State::kMissing});
  if (asked_.size() == size()) asked_.clear();
  return true;
}

void Found::note_found() {
  if (tier_ == 0) {
    for (std::size_t i = 0; i < size(); ++i) {
      if (held_[i].entry != nullptr) items_[i].state = State::kFound;
    }
    return;
  }
  if (!has_new_rows_) return;
  const std::size_t count = asked_.empty() ? size() : asked_.size();
  for (std::size_t k = 0; k < count; ++k) {
    if (!rows_.has(first_row_ + k)) continue;
    const std::size_t i = asked_.empty() ? k : asked_[k];
    items_[i] = {State::kFound, tier_, static_cast<std::uint32_t>(first_row_ + k)};
  }
}

void Found::take(Found of_led) {
  const auto first_row = static_cast<std::uint32_t>(rows_.size());
  std::vector<std::size_t> still_led;
  for (std::size_t k = 0; k < led.size(); ++k) {
    const std::size_t i = led[k];
    items_[i] = of_led.items_[k];
    items_[i].row += first_row;
    held_[i] = std::move(of_led.held_[k]);
    const State state = items_[i].state;
    if (state == State::kMissing || state == State::kConflict) still_led.push_back(i);
  }
  if (of_led.rows_.size() > 0) add_rows(std::move(of_led.rows_));
  led = std::move(still_led);
}

void Found::add_rows(FoundRows rows, std::function<bool()> still_holds) {
  first_row_ = rows_.size();
  has_new_rows_ = true;
  still_holds_ = std::move(still_holds);
  if (first_row_ == 0) {
    rows_ = std::move(rows);
  } else {
    rows_.append(std::move(rows));
  }
}

}  // namespace modcache::cache
