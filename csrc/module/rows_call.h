// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: one call of a cached module with one key per row, from the question to the answer.
//
//     RowsCall call(parts, keys);
//     while (auto rows = call.next_rows()) {
//       call.begin_run();  result = <run the module on these rows>;  call.finish_run(result,
//       facts);
//     }
//     call.together()
//
// Each distinct key that is missing is run once; rows that another thread runs at the same time are
// waited for, after this thread's own. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/batch.h"
#include "cache/cache.h"
#include "module/batch_keys.h"
#include "module/module_run.h"
#include "tensor/input_sampler.h"
#include "tensor/row_value.h"
#include "tensor/rows_output.h"

namespace modcache::module {

class RowsCall {
 public:
  RowsCall(CallParts parts, BatchKeys keys);
  ~RowsCall() { abandon(); }
  RowsCall(const RowsCall&) = delete;
  RowsCall& operator=(const RowsCall&) = delete;

  // The rows to run now, in ascending order; nothing when all are there. May wait.
  std::optional<std::vector<std::int64_t>> next_rows();
  bool is_whole_input(const std::vector<std::int64_t>& rows) const {
    return rows.size() == keys_.rows();  // each once, in ascending order
  }

  // Whose fingerprint the scope is, where the module came after the call.
  void note_weights(std::shared_ptr<const WatchedContents> weights) {
    parts_.weights = std::move(weights);
  }
  void begin_run(ModuleRun::Time started = std::chrono::steady_clock::now());
  // Keeps the rows unless a rule forbids it, counts, and warns once. Throws under strict=true, and
  // when `result` does not have these rows: nothing is stored then.
  void finish_run(tensor::Flat result, const RunFacts& facts);

  // What together() or apart() gave cannot be used after all: next_rows() then has the whole input
  // run, and its rows replace what is stored.
  void reject_hits();

  // The module raised: nothing of this run is kept, and waiters go on.
  void abandon();

  // What the rows give together; nothing when they do not fit together. Once, after next_rows()
  // gave nothing.
  std::optional<tensor::Flat> together();
  // Then: each row by itself.
  std::vector<tensor::Flat> apart();

  const CallParts& parts() const { return parts_; }
  const Outcome& outcome() const { return outcome_; }

 private:
  struct Part;
  struct Resident {  // a row that memory holds on a device
    std::shared_ptr<const tensor::RowValue> value;
    std::size_t row = 0;    // of the batch
    std::size_t place = 0;  // in the Part
  };

  tensor::RowsOutput empty_output() const;

  std::vector<std::int64_t> whole_input();
  void refuse_stored_rows();
  void look_up_and_lead(std::vector<std::size_t> places);
  void wait_for_others();
  void add_found(const Part& part, const cache::BatchRequest& request, cache::BatchFound& found);
  bool add_resident(const std::vector<Resident>& resident);
  static Status bring_to_host(const Resident& resident, tensor::StoredRow& row,
                              std::vector<std::shared_ptr<const void>>& held);
  static Status locate(const cache::FoundRows& disk, tensor::StoredRow& row,
                       tensor::LayoutPtr& layout);
  // `place`: in keys_.distinct().
  cache::Request request(std::size_t place) const {
    return {context_, keys_.distinct()[place], parts_.input.signature, &input_,
            static_cast<std::size_t>(keys_.first_row(place))};
  }
  bool has_conflicts_inside();
  // What the entries of running_keys_ will keep of their rows, which the run may change.
  void take_samples();
  // Which row of the run's result running_keys_[k] is.
  std::size_t place_in_run(std::size_t k) const {
    return is_whole_run_ ? static_cast<std::size_t>(keys_.first_row(k)) : k;
  }
  void judge_run(tensor::Flat result, const RunFacts& facts);
  void note_conflicts(const Part& part, const cache::BatchFound& found);
  bool replaces(std::size_t place) const { return !replaces_.empty() && replaces_[place]; }
  void keep(const tensor::Flat& result, const RunFacts& facts);
  // How many rows there was something to compare with.
  std::int64_t compare(const tensor::Flat& result);

  CallParts parts_;
  tensor::InputSampler input_;
  BatchKeys keys_;
  cache::SessionPtr session_;
  cache::Mode mode_;
  cache::ContextPtr context_;
  bool grad_is_unknown_;
  tensor::RowsOutput output_;

  bool is_begun_ = false;
  bool needs_whole_input_ = false;
  bool is_refused_ = false;    // the last run's result may not be kept
  bool is_whole_run_ = false;  // the input is run as it is, repeated keys and all
  // By places in keys_.distinct(): what is stored there must not be found again. Empty: nothing is.
  std::vector<bool> replaces_;
  // Places in keys_.distinct(): to be run by this thread, and being run by others.
  std::vector<std::size_t> mine_;
  std::vector<std::size_t> awaited_;
  cache::SingleFlight::Lead lead_;
  // What is being run: the rows, and the places of the keys that it gives values for.
  std::vector<std::int64_t> running_;
  std::vector<std::size_t> running_keys_;
  std::vector<cache::InputSample> samples_;  // of running_keys_
  std::optional<ModuleRun> run_;
  Outcome outcome_;
};

}  // namespace modcache::module
