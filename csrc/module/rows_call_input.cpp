// SPDX-License-Identifier: Apache-2.0
//
// RowsCall, what it reads of the input's values.
#include "module/rows_call.h"

namespace modcache::module {

// Two rows with one key and different inputs, such as two views of one image: each then gets the
// result of its own run.
bool RowsCall::has_conflicts_inside() {
  if (keys_.repeated().empty() || !session_->compares_input(parts_.scope, &input_)) return false;
  std::size_t conflicts = 0;
  std::size_t first_row = 0;
  for (const auto& [row, same_as] : keys_.repeated()) {
    cache::MeasuredInput measured;
    cache::MeasuredInput first;
    if (!input_.measure(row, measured) || !input_.measure(same_as, first) ||
        measured.agrees_with(first.sample().bytes())) {
      continue;
    }
    if (conflicts++ == 0) first_row = same_as;
  }
  if (conflicts == 0) return false;
  std::size_t place = 0;
  while (static_cast<std::size_t>(keys_.first_row(place)) != first_row) ++place;
  session_->note_conflict_in_batch(request(place), conflicts);
  return true;
}

void RowsCall::take_samples() {
  samples_.clear();
  if (!may_write(mode_) || parts_.scope.empty()) return;
  samples_.reserve(running_keys_.size());
  for (const std::size_t place : running_keys_) {
    samples_.push_back(
        session_->sample_to_keep(input_, static_cast<std::size_t>(keys_.first_row(place))));
  }
}

}  // namespace modcache::module
