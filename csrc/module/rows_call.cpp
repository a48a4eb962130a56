// SPDX-License-Identifier: Apache-2.0
#include "module/rows_call.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "tensor/error_text.h"
#include "tensor/payload.h"
#include "tensor/resident_rows.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/stored_value.h"

namespace modcache::module {
namespace {

using cache::Counter;

std::vector<std::size_t> first_numbers(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

RowsCall::RowsCall(CallParts parts, BatchKeys keys)
    : parts_(std::move(parts)),
      input_(parts_.input.tensors, tensor::Per::kRow),
      keys_(std::move(keys)),
      session_(cache::Cache::instance().session()),
      mode_(cache::Cache::instance().mode()),
      context_(cache::make_context({session_->settings().name_space, parts_.scope, parts_.method,
                                    cache::Form::kRow, parts_.input.arguments,
                                    parts_.arithmetic_state()})),
      grad_is_unknown_(parts_.grad_pattern != 0 && !is_known_graph_free(parts_)),
      output_(empty_output()) {}

// Pinned where the batch goes on to a device.
tensor::RowsOutput RowsCall::empty_output() const {
  const auto& device = parts_.input.device;
  const bool is_on_device = device.has_value() && !device->is_cpu();
  const bool is_pinned =
      is_on_device || session_->place_of(parts_.scope).kind == cache::Place::Kind::kPinned;
  return tensor::RowsOutput(keys_.rows(), is_pinned);
}

// A part of the distinct keys, and the question for it.
struct RowsCall::Part {
  Part(const RowsCall& call, std::vector<std::size_t> of_distinct)
      : places(std::move(of_distinct)) {
    keys.reserve(places.size());
    input_rows.reserve(places.size());
    for (const std::size_t place : places) {
      keys.push_back(call.keys_.distinct()[place]);
      input_rows.push_back(static_cast<std::size_t>(call.keys_.first_row(place)));
    }
  }
  cache::BatchRequest request(const RowsCall& call) const {
    return {call.context_, keys, call.parts_.input.signature, &call.input_, &input_rows};
  }
  std::vector<std::size_t> places_of(const std::vector<std::size_t>& rows) const {
    std::vector<std::size_t> found;
    found.reserve(rows.size());
    for (const std::size_t row : rows) found.push_back(places[row]);
    return found;
  }

  std::vector<std::size_t> places;
  std::vector<std::string_view> keys;
  std::vector<std::size_t> input_rows;
};

std::optional<std::vector<std::int64_t>> RowsCall::next_rows() {
  if (!is_begun_) {
    is_begun_ = true;
    if (grad_is_unknown_ || parts_.scope.empty() || has_conflicts_inside()) return whole_input();
    std::vector<std::size_t> all = first_numbers(keys_.distinct().size());
    if (may_read(mode_) && !always_runs(mode_)) {
      look_up_and_lead(std::move(all));
    } else {
      mine_ = std::move(all);
    }
  }
  if (needs_whole_input_) return whole_input();
  while (mine_.empty() && !awaited_.empty()) wait_for_others();
  if (mine_.empty()) {
    lead_.give_up();
    if (is_whole_run_ || !output_.has_odd_stored_rows()) return std::nullopt;
    refuse_stored_rows();
    return whole_input();
  }
  const auto most = static_cast<std::size_t>(session_->settings().max_rows);
  const std::size_t count = most == 0 ? mine_.size() : std::min(most, mine_.size());
  const auto end = mine_.begin() + static_cast<std::ptrdiff_t>(count);
  running_keys_.assign(mine_.begin(), end);
  mine_.erase(mine_.begin(), end);
  running_.clear();
  for (const std::size_t i : running_keys_) running_.push_back(keys_.first_row(i));
  take_samples();
  return running_;
}

void RowsCall::reject_hits() {
  needs_whole_input_ = true;
  replaces_.assign(keys_.distinct().size(), true);
  cache::Cache::instance().counters().add(Counter::kKeyConflicts,
                                          static_cast<std::int64_t>(keys_.rows()));
  log_once(LogLevel::kWarning, "other-type:" + parts_.who(),
           "stored results of " + parts_.who() +
               " have another type than the method declares: they are computed anew, and replaced");
}

// The module gave rows of one kind, and the directory has some of another: those are not its own.
void RowsCall::refuse_stored_rows() {
  replaces_.assign(keys_.distinct().size(), true);
  cache::Cache::instance().counters().add(Counter::kCorrupt);
  log_once(LogLevel::kWarning, "other-kind:" + parts_.who(),
           "stored rows of " + parts_.who() +
               " have another dtype or number of dimensions than it gives: they are computed anew, "
               "and replaced");
}

// What was found so far is not used.
std::vector<std::int64_t> RowsCall::whole_input() {
  needs_whole_input_ = false;
  is_whole_run_ = true;
  mine_.clear();
  awaited_.clear();
  output_ = empty_output();
  running_.resize(keys_.rows());
  std::iota(running_.begin(), running_.end(), 0);
  running_keys_ = first_numbers(keys_.distinct().size());
  take_samples();
  return running_;
}

void RowsCall::look_up_and_lead(std::vector<std::size_t> places) {
  const Part part(*this, std::move(places));
  const cache::BatchRequest request = part.request(*this);
  cache::BatchFound found = session_->lookup_all(request, may_write(mode_));
  note_conflicts(part, found);
  add_found(part, request, found);
  std::vector<std::size_t> missing = found.missing();
  if (missing.empty()) return;
  if (!may_write(mode_)) {
    mine_ = part.places_of(missing);
    return;
  }
  cache::BatchLead lead = session_->lead_rows(request, found);
  lead_ = std::move(lead.lead);
  mine_ = part.places_of(lead.led);
  awaited_ = part.places_of(lead.awaited);
  if (lead.look_again && !mine_.empty()) {
    const Part again(*this, std::move(mine_));
    const cache::BatchRequest question = again.request(*this);
    cache::BatchFound found_now = session_->lookup_led(question, lead_);
    note_conflicts(again, found_now);
    add_found(again, question, found_now);
    mine_ = again.places_of(found_now.missing());
  }
}

void RowsCall::note_conflicts(const Part& part, const cache::BatchFound& found) {
  if (found.conflicts().empty()) return;
  replaces_.resize(keys_.distinct().size(), false);
  for (const std::size_t place : part.places_of(found.conflicts())) replaces_[place] = true;
}

// Gives up its own leads first: two batches that wait for each other's rows would wait for ever.
void RowsCall::wait_for_others() {
  lead_.give_up();
  const Part part(*this, std::exchange(awaited_, {}));
  if (session_->wait_for(part.request(*this), first_numbers(part.places.size()))) {
    look_up_and_lead(part.places);
  } else {
    mine_ = part.places;
  }
}

void RowsCall::add_found(const Part& part, const cache::BatchRequest& request,
                         cache::BatchFound& found) {
  const cache::FoundRows& disk = found.disk();
  std::vector<tensor::LayoutPtr> layouts(disk.headers().size());
  std::vector<tensor::StoredRow> rows;
  std::vector<std::shared_ptr<const void>> held;
  std::vector<std::size_t> places;  // in `part`, of each of `rows`
  std::vector<Resident> resident;
  rows.reserve(found.size());
  places.reserve(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found.is_missing(i)) continue;
    tensor::StoredRow row;
    row.row = static_cast<std::size_t>(keys_.first_row(part.places[i]));
    if (found.is_on_disk(i)) {
      row.index = found.disk_row(i);
      const Status status = locate(disk, row, layouts[disk.header_index(row.index)]);
      if (!status.is_ok()) {
        session_->refuse(request, found, i, status, may_write(mode_));
        continue;
      }
    } else {
      const cache::EntryPtr entry = found.in_memory(i);
      held.push_back(entry);
      const auto& value = static_cast<const tensor::RowValue&>(*entry->value);
      if (value.is_on_device()) {
        resident.push_back({value.shared(), row.row, i});
        continue;
      }
      row.layout = &value.layout();
      row.bytes = value.bytes();
    }
    rows.push_back(row);
    places.push_back(i);
  }
  if (!resident.empty() && !add_resident(resident)) {
    for (const Resident& one : resident) {
      tensor::StoredRow row;
      row.row = one.row;
      row.layout = &one.value->layout();
      const Status status = bring_to_host(one, row, held);
      if (!status.is_ok()) {
        session_->refuse(request, found, one.place, status, may_write(mode_));
        continue;
      }
      rows.push_back(row);
      places.push_back(one.place);
    }
  }
  const auto failures = output_.add_stored(
      rows, [&](std::size_t index, void* target) { return disk.read(index, target); });
  for (const auto& failure : failures) {
    session_->refuse(request, found, places[failure.place], failure.status, may_write(mode_));
  }
}

// Rows that lie on a device, put together there as a run's result would be. False: they do not fit
// together, or the device failed.
bool RowsCall::add_resident(const std::vector<Resident>& resident) {
  std::vector<std::shared_ptr<const tensor::RowValue>> values;
  std::vector<std::int64_t> rows;
  for (const Resident& one : resident) {
    values.push_back(one.value);
    rows.push_back(static_cast<std::int64_t>(one.row));
  }
  try {
    auto together = tensor::together_on_device(values, parts_.input.device);
    if (!together.has_value()) return false;
    output_.add_computed(std::move(rows), *std::move(together));
    return true;
  } catch (const std::exception& error) {
    report_failure(parts_, "put together on its device", error);
    return false;
  }
}

Status RowsCall::bring_to_host(const Resident& resident, tensor::StoredRow& row,
                               std::vector<std::shared_ptr<const void>>& held) {
  try {
    auto here = resident.value->on_host();
    row.bytes = here->bytes();
    held.push_back(std::move(here));
    return Status::ok();
  } catch (const std::exception& error) {
    return Status::io_error("a row could not be read from its device: " + tensor::text_of(error));
  }
}

// `layout` is that of the row's header, decoded when its first row is met.
Status RowsCall::locate(const cache::FoundRows& disk, tensor::StoredRow& row,
                        tensor::LayoutPtr& layout) {
  if (layout == nullptr) {
    auto decoded = tensor::Layout::decode(disk.header(row.index).value_header);
    if (!decoded.is_ok()) return decoded.status();
    layout = std::move(decoded).value();
  }
  row.layout = layout.get();
  row.stored_size_bytes = disk.payload_size_bytes(row.index);
  MODCACHE_RETURN_IF_ERROR(tensor::check_payload_size(*layout, row.stored_size_bytes));
  if (!layout->is_encoded()) row.bytes = disk.verified_bytes(row.index);
  return Status::ok();
}

void RowsCall::abandon() {
  if (run_.has_value()) run_->end();
  lead_.give_up();
}

std::optional<tensor::Flat> RowsCall::together() {
  if (!is_whole_run_) {
    for (const auto& [row, same_as] : keys_.repeated()) output_.repeat(row, same_as);
    // Their value came from the memory of this call.
    if (!is_refused_ && !always_runs(mode_) && !keys_.repeated().empty()) {
      cache::Cache::instance().counters().add(Counter::kHitsMemory,
                                              static_cast<std::int64_t>(keys_.repeated().size()));
    }
  }
  return output_.together(parts_.input.device);
}

std::vector<tensor::Flat> RowsCall::apart() { return output_.apart(parts_.input.device); }

}  // namespace modcache::module
