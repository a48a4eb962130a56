// SPDX-License-Identifier: Apache-2.0
//
// Run: what follows a lookup that did not find everything: the steps in which the module is run,
// and what becomes of their results. Each distinct missing key is run once; keys that another
// thread runs are waited for, after this thread has run its own.
//
//     while (const Step* step = run.step()) {
//       run.start();
//       result = <the module on step->input_of(input)>;
//       run.finish(result, facts);
//     }
//     run.value()
//
// The first steps run what is missing. Further ones check that results consist of rows
// (row_proof.h), and how they are padded (padding_trials.h). Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "module/call/call.h"
#include "module/call/learned_padding.h"
#include "module/call/observation.h"
#include "module/call/padding_trials.h"
#include "module/call/row_proof.h"
#include "module/call/rules.h"
#include "tensor/rows.h"

namespace modcache::module {

struct Step {
  enum class Kind {
    kRun,    // runs what is missing
    kCheck,  // runs `check`: rows made from one row of the input
    kTrial,  // runs `trial`: one row at another length
  };
  Kind kind = Kind::kRun;
  bool is_whole_input = true;      // kRun
  std::vector<std::int64_t> rows;  // kRun: of the input, in ascending order; empty for a whole call
  RowCheck check;
  PaddingTrial trial;

  // kRun and kCheck: the input of the step.
  at::IValue input_of(const at::IValue& input) const;
};

// The outcome of the last run.
struct Outcome {
  bool has_stored = false;
  // The rule that forbade storing the result ("grad", "impure", "type", ...), and the warning;
  // empty when none did.
  std::string refused_for;
  std::string refusal;
};

class Run {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Takes over the call. Call::begin() makes it. `context`: that of its keys, where it is known.
  explicit Run(Call&& call, cache::ContextPtr context = nullptr);
  ~Run() { abandon(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // The step to make now; null: value() has the value. May wait for other threads.
  const Step* step();
  // Begins the module's own time, and watches what it does; only for steps of kind kRun. Call it
  // again when the module was loaded meanwhile. `started` is in the past for a module that ran
  // before.
  void start(Time started = std::chrono::steady_clock::now());
  // Ends the step. For kRun it stores the result unless a rule forbids it, counts, and warns once.
  // nullopt: a check or trial raised, or its input could not be made. Throws under strict=true.
  void finish(std::optional<tensor::Flat> result, const RunFacts& facts = {});
  // Ends a run that raised: nothing of it is stored, and threads that wait for its result continue.
  void abandon();

  // Returns the value; nullopt: the result of the last step of kind kRun is returned as it is,
  // which the caller has. Call it once, when there is no step.
  std::optional<CallValue> value(bool has_own_result = true);
  // Call it when the value of value() has another type than the method declares: a step runs the
  // whole input, whose result replaces what is stored. `why_apart`: the reason where its rows do
  // not fit together and the caller takes nothing else; see refuse_rows_apart().
  void reject(const std::string& why_apart = "");
  // Does so for rows that do not fit together, where the caller takes nothing else: the result is
  // then returned as it is, uncached.
  void refuse_rows_apart(const std::string& why);

  // The call bypasses the cache, and is to be run uncached. It was counted.
  bool is_bypassed() const { return is_bypassed_; }
  // Lets other threads run the keys of this run, too: for a caller that may never make it.
  void give_up_lead() { lead_.give_up(); }
  // Sets the weights that the scope is the fingerprint of, for a module that was loaded during the
  // call.
  void set_weights(std::shared_ptr<const TensorWatch> weights) {
    parts_.weights = std::move(weights);
  }

  const CallParts& parts() const { return parts_; }
  const Outcome& outcome() const { return outcome_; }
  std::int64_t run_us() const { return run_us_; }

 private:
  friend class Call;

  // A result that waits for its check run.
  struct Unchecked {
    tensor::Flat result;  // a copy
    RunFacts facts;
    std::vector<at::Tensor> own;  // the tensors that were copied
  };
  // A result that waits for its trials.
  struct Pending {
    PaddingTrials trials;
    RunFacts facts;
  };
  // Gives the row of the run's result that belongs to running_keys_[k]; for a whole call, all.
  using RowOfRun = std::function<tensor::Flat(std::size_t k)>;
  using CutRow = std::function<std::shared_ptr<const cache::Value>(std::size_t k)>;

  // Plan the next step (run.cpp).
  void look_up_first();
  void look_up(const std::vector<std::size_t>& places, bool asks_server);
  // Takes over what Call::begin() found of all keys.
  // `keys`: of all rows.
  void take_found(cache::Keys keys, cache::Found& found);
  void add_found(const std::vector<std::size_t>& places, const cache::Keys& keys,
                 cache::Found& found);
  void note_row_marks();
  void wait_for_others();
  bool plan_rows();
  void plan_whole_input();
  bool fit_together();
  bool has_conflicts_inside();
  bool has_odd_padding() const;
  bool has_odd_constants();
  void refuse_stored_rows();
  // Samples the input of running_keys_ for their entries before the run, which may change it.
  void take_samples();
  void repeat_rows();
  tensor::RowsOutput empty_output() const;
  Digest128 padded_form() const;
  CallValue rows_value();
  cache::Keys keys_at(const std::vector<std::size_t>& places) const;
  cache::Keys key_at(std::size_t place) const { return keys_at({place}); }

  // Judge and store a result (results.cpp).
  void judge_run(tensor::Flat&& result, const RunFacts& facts);
  bool may_use_rows(const tensor::Flat& result, bool is_refused);
  void judge_rows(tensor::Flat&& result, const RunFacts& facts);
  void plan_check(tensor::Flat&& result, const RunFacts& facts);
  std::vector<RowCheck> planned_checks() const;
  void finish_check(const std::optional<tensor::Flat>& checked);
  RowProof judged(const std::optional<tensor::Flat>& checked, const RowCheck& check) const;
  void end_check(const RowProof& proof, tensor::Flat&& result, const RunFacts& facts,
                 const std::vector<at::Tensor>& own);
  // Continue with a result that no rule forbids to store, once its rows are known, or not.
  void accept_rows(tensor::Flat&& result, const RunFacts& facts);
  void accept_unproven(tensor::Flat&& result, const RunFacts& facts);
  // Returns the whole input's result as it is, uncached.
  void refuse_rows(tensor::Flat&& result, const std::string& why);
  void give_unstored(tensor::Flat&& result);
  bool is_refused_by_row();
  void count_refusal(const char* cause, const std::string& why, std::size_t rows);
  void look_up_proof();
  void note_proof(bool is_for_process = false);
  void accept(tensor::Flat&& result, const RunFacts& facts);
  void accept_padded(tensor::Flat&& result, const RunFacts& facts);
  void finish_trial(const std::optional<tensor::Flat>& tried);
  void end_trials();
  void refuse_for_padding(tensor::Flat&& result, const std::string& why);
  std::optional<tensor::Flat> padded(const tensor::Flat& result) const;
  // Counts the run, and compares and stores its rows as the mode says.
  void take(const RowOfRun& row_of_run, const CutRow& cut, const RunFacts& facts);
  // Stores those of running_keys_ that `are_stored`. `has_refused`: admission refused some of them.
  void store(const CutRow& cut, const RunFacts& facts, const std::vector<bool>& are_stored,
             bool has_refused);
  Comparison compare(std::size_t k, const RowOfRun& row_of_run);
  void count_run(std::int64_t misses);
  void observe_end() const;
  bool has_other_weights(const RunFacts& facts) const;
  bool is_admitted(std::size_t place) const;
  bool may_store_row(std::size_t place) const;
  bool is_stored_already(std::size_t place) const;

  // Beside a list of which nothing tells whether it goes row by row, no rows can be taken out.
  bool has_fixed_shape() const { return parts_.has_fixed_shape || parts_.runs_whole; }
  bool looks_up() const { return may_read(parts_.mode) && !always_runs(parts_.mode); }
  // Returns whether the run's result is compared with the stored value, as under `verify`. It then
  // is no miss.
  bool is_verified() const {
    return may_read(parts_.mode) && always_runs(parts_.mode) && !parts_.scope.empty();
  }
  bool may_ever_store() const { return may_write(parts_.mode) && !parts_.scope.empty(); }
  // Returns the same, and whether it is worth storing: the keys of the scope may have come with
  // other inputs too often.
  bool may_store() const {
    return may_ever_store() &&
           (always_runs(parts_.mode) || !parts_.cache->has_stopped_storing(parts_.scope));
  }
  std::size_t row_of(std::size_t place) const {
    return static_cast<std::size_t>(keys_.first_row(place));
  }
  std::string_view signature_of(std::size_t place) const;
  bool replaces(std::size_t place) const { return !replaces_.empty() && replaces_[place]; }
  bool is_sampled(std::size_t place) const { return !sampled_.empty() && sampled_[place]; }
  bool is_all(const std::vector<std::int64_t>& rows) const { return rows.size() == keys_.rows(); }
  // Returns the row of the run's result that belongs to running_keys_[k].
  std::size_t place_in_run(std::size_t k) const {
    return is_whole_run_ ? row_of(running_keys_[k]) : k;
  }

  const Time begun_at_ = std::chrono::steady_clock::now();
  CallParts parts_;
  CallKeys keys_;
  tensor::InputSampler input_;
  cache::ContextPtr context_;
  std::map<std::int64_t, std::string> own_signatures_;  // by length; empty: no rows are padded
  // Until it is known that the result has no graph the module must run: a hit would cut it off.
  bool grad_is_unknown_;
  bool compares_input_ = false;  // decided once for all lookups
  cache::SingleFlight::Lead lead_;
  std::optional<cache::Generation> generation_;

  std::optional<Observation> observation_;
  Time started_;
  std::int64_t run_us_ = 0;
  bool was_miss_ = false;
  bool has_run_ = false;
  bool ran_whole_input_ = false;  // in the last step of kind kRun
  Outcome outcome_;

  Step step_;
  bool has_step_ = false;
  bool is_begun_ = false;
  bool is_bypassed_ = false;
  bool needs_whole_input_ = false;
  bool is_refused_ = false;      // the last run's result may not be stored
  bool is_whole_run_ = false;    // the whole input is run, repeated keys included
  bool was_checked_ = false;     // a check run followed a run
  bool was_tried_ = false;       // trials followed a run
  bool is_overwritten_ = false;  // a check run or a trial wrote into the memory of the result
  bool has_failed_check_ = false;
  bool has_looked_up_proof_ = false;
  bool are_unproven_ = false;        // the last result is stored for batches of one
  bool is_padding_refused_ = false;  // in this call, whose whole input is run then

  tensor::RowsOutput output_;
  std::optional<CallValue> found_value_;  // of a whole call
  // The module's own result, for which a check run followed; or all rows together.
  std::optional<tensor::Flat> whole_;
  RowProof proof_;
  std::vector<RowCheck> checks_;  // to be made
  std::unique_ptr<Unchecked> unchecked_;
  std::optional<LearnedPadding> learned_;
  std::unique_ptr<Pending> pending_;
  // True at the places in keys_ whose stored value must not be found again. Empty: nowhere.
  std::vector<bool> replaces_;
  // True at the places whose rows are compared with what is stored (verify_share). Empty: nowhere.
  std::vector<bool> sampled_;
  // Places in keys_ that this thread has to run, and that other threads are running.
  std::vector<std::size_t> mine_;
  std::vector<std::size_t> awaited_;
  // The rows that are being run, and the places of the keys that get values from them.
  std::vector<std::int64_t> running_;
  std::vector<std::size_t> running_keys_;
  std::vector<cache::InputSample> samples_;  // one for each of running_keys_
};

}  // namespace modcache::module
