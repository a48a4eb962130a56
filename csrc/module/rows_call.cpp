// SPDX-License-Identifier: Apache-2.0
#include "module/rows_call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "tensor/difference.h"
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
    cache::BatchFound found_now = session_->lookup_all(question, may_write(mode_));
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

void RowsCall::begin_run(ModuleRun::Time started) { run_.emplace(started); }

void RowsCall::finish_run(tensor::Flat result, const RunFacts& facts) {
  try {
    judge_run(std::move(result), facts);
  } catch (...) {
    abandon();  // whoever keeps the exception may keep this call, too
    throw;
  }
}

void RowsCall::judge_run(tensor::Flat result, const RunFacts& facts) {
  run_->end();
  const auto rows = static_cast<std::int64_t>(running_.size());
  const bool is_storable = tensor::why_not_storable(result).empty();
  const std::string why_no_rows = is_storable ? tensor::why_no_rows(result, rows) : "";
  if ((!is_storable || !why_no_rows.empty()) && !is_whole_input(running_)) {
    needs_whole_input_ = true;  // it cannot be put together from rows; a whole one may be right
    return;
  }
  is_refused_ = true;
  const bool may_keep = run_->may_keep(parts_, *session_, result, facts, rows, outcome_);
  TORCH_CHECK(why_no_rows.empty(), "cache::lookup_or_run: ", parts_.who(), " was run on ", rows,
              " rows, one key each, and returned ", why_no_rows,
              "; every tensor of its result must have the rows as its first dimension. For one key "
              "for the whole input, pass the key as a str");
  if (may_keep) {
    is_refused_ = false;
    if (grad_is_unknown_) note_graph_free(parts_);
    auto& counters = cache::Cache::instance().counters();
    counters.add(Counter::kRunUs, run_->run_us());
    const bool is_verified = may_read(mode_) && always_runs(mode_) && !parts_.scope.empty();
    const std::int64_t compared = is_verified ? compare(result) : 0;
    counters.add(Counter::kMisses, rows - compared);
    const bool may_store = may_write(mode_) && !parts_.scope.empty() &&
                           (always_runs(mode_) || !session_->has_stopped_storing(parts_.scope));
    if (may_store) keep(result, facts);
  }
  output_.add_computed(running_, std::move(result));
}

// The model has its result: nothing that goes wrong from here on may take it away.
void RowsCall::keep(const tensor::Flat& result, const RunFacts& facts) {
  try {
    const auto weights = judge_weights(parts_, facts, run_->run_us());
    if (weights.is_changed) return;
    const std::int64_t run_us = run_->run_us() / static_cast<std::int64_t>(running_.size());
    const auto& settings = session_->settings();
    const tensor::RowCutter cutter(result, parts_.input.device, settings.dtype);
    struct Kept {
      std::vector<std::string_view> keys;
      std::vector<cache::EntryPtr> entries;
    };
    Kept fresh;
    Kept replacing;
    for (std::size_t k = 0; k < running_keys_.size(); ++k) {
      const std::size_t place = running_keys_[k];
      // A run that only taught whether there is a graph does not replace what is there.
      if (grad_is_unknown_ && !always_runs(mode_) && session_->contains(request(place))) continue;
      Kept& kept = always_runs(mode_) || replaces(place) ? replacing : fresh;
      cache::Entry entry{cutter.cut(place_in_run(k)), parts_.input.signature, run_us, now_us(),
                         weights.confirmation};
      entry.sample = samples_[k];
      kept.keys.push_back(keys_.distinct()[place]);
      kept.entries.push_back(std::make_shared<const cache::Entry>(std::move(entry)));
    }
    const std::size_t stored =
        session_->store_all(context_, fresh.keys, fresh.entries) +
        session_->store_all(context_, replacing.keys, replacing.entries, /*replaces=*/true);
    if (stored == 0) return;
    outcome_.has_stored = true;
    lead_.stored();
  } catch (const std::exception& error) {
    report_failure(parts_, "kept", error);
  }
}

std::int64_t RowsCall::compare(const tensor::Flat& result) {
  std::int64_t compared = 0;
  try {
    for (std::size_t k = 0; k < running_keys_.size(); ++k) {
      const std::string_view key = keys_.distinct()[running_keys_[k]];
      const cache::EntryPtr entry = session_->peek(request(running_keys_[k]));
      if (entry == nullptr) continue;
      ++compared;
      const tensor::StoredValue stored = tensor::stored_value(*entry->value);
      tensor::Flat row{result.root, {}, {}};
      for (const at::Tensor& tensor : result.tensors) {
        row.tensors.push_back(tensor.select(0, static_cast<std::int64_t>(place_in_run(k))));
      }
      const tensor::Tolerance tolerance =
          stored.layout->tolerance(session_->settings().verify_rtol);
      const std::string found = tensor::difference(row, stored.value, tolerance);
      if (!found.empty()) report_difference(parts_, key, found);
    }
  } catch (const std::exception& error) {
    report_failure(parts_, "verified", error);
  }
  return compared;
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
