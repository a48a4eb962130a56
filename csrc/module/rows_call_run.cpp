// SPDX-License-Identifier: Apache-2.0
//
// RowsCall, what becomes of a run's result.
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "module/rows_call.h"
#include "tensor/difference.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"
#include "tensor/stored_value.h"

namespace modcache::module {
namespace {

using cache::Counter;

}  // namespace

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

}  // namespace modcache::module
