// SPDX-License-Identifier: Apache-2.0
//
// RowsCall: one call of a cached module with one key per row, from the lookup to the result.
//
//     RowsCall call(parts, keys);
//     while (auto rows = call.next_rows()) {
//       call.begin_run();  result = <run the module on these rows>;
//       call.finish_run(result, facts);
//       while (auto check = call.next_check()) call.finish_check(<run it on check_input()>);
//       while (auto trial = call.next_trial()) call.finish_trial(<run it on this one row>);
//     }
//     call.together()
//
// Each distinct missing key is run once. Rows that another thread runs at the same time are waited
// for, after this thread has run its own. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/batch.h"
#include "module/call/batch_keys.h"
#include "module/call/learned_padding.h"
#include "module/call/open_call.h"
#include "module/call/padding_trials.h"
#include "module/call/row_proof.h"
#include "tensor/rows.h"

namespace modcache::module {

class RowsCall : public OpenCall {
 public:
  RowsCall(CallParts parts, BatchKeys keys);

  // Sets the padded dimensions that were learned elsewhere, so that no run is followed by a trial.
  // Anything that this process has learned to the contrary holds. Call it before next_rows().
  // REQUIRES: padding, and results with LearnedPadding::fits().
  void trust_padding(std::vector<tensor::DimSet> dims);

  // Returns the rows to run now, in ascending order; nothing when all rows are there. May wait for
  // other threads.
  std::optional<std::vector<std::int64_t>> next_rows();
  bool is_whole_input(const std::vector<std::int64_t>& rows) const {
    return rows.size() == keys_.rows();  // each once, in ascending order
  }

  // REQUIRES: next_rows() returned rows.
  void begin_run(ModuleRun::Time started = std::chrono::steady_clock::now()) { start_run(started); }
  // Stores the rows unless a rule forbids it, counts, and warns once. Throws under strict=true.
  void finish_run(tensor::Flat result, const RunFacts& facts);

  // Returns the check run that has to show whether the last result consists of rows (row_proof.h).
  // Ask before next_trial().
  std::optional<RowCheck> next_check() const {
    return checks_.empty() ? std::nullopt : std::optional(checks_.front());
  }
  // Ends a check run; there may be another. Nothing: the module raised, or the input could not be
  // made. Throws under strict=true only.
  void finish_check(const std::optional<tensor::Flat>& checked);
  // Declares the rows proven, as a recorded program carries it, or that this call cannot make a
  // check run, or only one of the shape of its batch. Call these before next_rows().
  void trust_rows();
  void cannot_check() { can_check_ = false; }
  void check_in_same_shape() { has_fixed_shape_ = true; }

  // Returns the row that has to be run once more before the last result can be judged: only where
  // rows have lengths of their own. Ask again after finish_trial().
  std::optional<PaddingTrial> next_trial() const {
    return pending_.has_value() ? pending_->trials.next() : std::nullopt;
  }
  // Ends a trial. Nothing: the module raised. Throws under strict=true only.
  void finish_trial(const std::optional<tensor::Flat>& tried);
  // Returns whether the last run's result, where that was for the whole input, is to be returned
  // as it is. A check run or a trial may have overwritten it.
  bool gives_own_result() const {
    if (is_overwritten_) return false;
    return !parts_.padding.has_value() || (is_refused_ && !was_tried_);
  }

  // Call it when the value of together() or apart() has the wrong type: next_rows() then returns
  // the whole input, and the rows of its run replace the stored ones.
  void reject_hits();
  // Does so when its rows do not fit together, and the caller takes nothing else: the result is
  // then returned as it is, uncached.
  void refuse_rows_apart(const std::string& why);

  // Returns all rows in one value; nothing when they do not fit together. Call it once, after
  // next_rows() returned nothing.
  std::optional<tensor::Flat> together();
  // Returns each row by itself. Call it after together() returned nothing.
  std::vector<tensor::Flat> apart();

 private:
  struct Part;
  // A result that waits for its check run.
  struct Unchecked {
    tensor::Flat result;  // a copy, where there is to be a check run
    RunFacts facts;
    std::vector<at::Tensor> own = {};  // the tensors that were copied
  };
  // A result that waits for its trials.
  struct Pending {
    PaddingTrials trials;
    RunFacts facts;
  };

  tensor::RowsOutput empty_output() const;

  // Returns whether two rows have one key but different inputs, such as two views of one image.
  // Each then gets the result of its own run.
  bool has_conflicts_inside();
  bool has_odd_padding() const;
  Digest128 padded_form() const;
  std::vector<std::int64_t> whole_input();
  void refuse_stored_rows();
  void look_up_and_lead(std::vector<std::size_t> places);
  void lead(const Part& part, const cache::BatchFound& found,
            const std::vector<std::size_t>& missing);
  void wait_for_others();
  void add_found(const Part& part, const cache::BatchRequest& request, cache::BatchFound& found);
  // Samples the input rows of running_keys_ for their entries before the run, which may change
  // them.
  void take_samples();
  // `place` is an index into keys_.distinct().
  cache::Request request(std::size_t place) const {
    return {context_, keys_.distinct()[place], signature_of(place), &input_, row_of(place)};
  }
  std::string_view signature_of(std::size_t place) const {
    if (!parts_.padding.has_value()) return parts_.input.signature;
    return own_signatures_.at(parts_.padding->lengths[row_of(place)]);
  }
  std::size_t row_of(std::size_t place) const {
    return static_cast<std::size_t>(keys_.first_row(place));
  }
  bool may_keep_row(std::size_t place) const;
  bool replaces(std::size_t place) const { return !replaces_.empty() && replaces_[place]; }

  // Gives the row of the run's result that belongs to running_keys_[k].
  using RowOfRun = std::function<tensor::Flat(std::size_t k)>;
  using CutRow = std::function<std::shared_ptr<const cache::Value>(std::size_t k)>;

  void judge_run(tensor::Flat result, const RunFacts& facts);
  // Plans the check run of a result; without one nothing is proven.
  void plan_check(tensor::Flat result, const RunFacts& facts);
  std::vector<RowCheck> planned_checks() const;
  // Beside a list of which nothing tells whether it goes row by row, no rows can be taken out.
  bool has_fixed_shape() const { return has_fixed_shape_ || parts_.runs_whole; }
  RowProof judged(const std::optional<tensor::Flat>& checked, const RowCheck& check) const;
  void end_check(const RowProof& proof);
  // Goes on with a result that no rule forbids to keep, once its rows are known.
  void accept_rows(tensor::Flat result, const RunFacts& facts);
  void accept_unproven(tensor::Flat result, const RunFacts& facts);
  // Returns the whole input's result as it is, uncached.
  void refuse_rows(tensor::Flat result, const std::string& why);
  void give_unstored(tensor::Flat result);
  bool fit_together();
  // Returns whether stored constants of the rows that were found differ.
  bool has_odd_constants();
  bool is_refused_by_row();
  // Counts and warns that so many rows are not cached. Throws under strict=true.
  void note_refusal(const char* cause, const std::string& why, std::size_t rows);
  // Asks once what is known of the rows of this context.
  void look_up_proof();
  void repeat_rows();
  // Takes over a result that no rule forbids to keep.
  void accept(tensor::Flat result, const RunFacts& facts);
  // Does so once its padded dimensions are known, which may need a trial.
  void accept_padded(tensor::Flat result, const RunFacts& facts);
  void end_trials();
  void refuse_for_padding(tensor::Flat result, const std::string& why);
  std::optional<tensor::Flat> padded(const tensor::Flat& result) const;
  // Counts the run, and compares and stores its rows as the mode says.
  void take(const RowOfRun& row_of_run, const CutRow& cut, const RunFacts& facts);
  // Stores those of running_keys_ that `are_kept`. `has_refused`: admission refused some of them.
  void keep(const CutRow& cut, const RunFacts& facts, const std::vector<bool>& are_kept,
            bool has_refused);
  // Compares row k of the run with what is stored where that is to be done.
  Comparison compare_row(std::size_t k, const RowOfRun& row_of_run);
  // Returns whether the row that the key at this place got is to be stored.
  bool is_row_admitted(std::size_t place) const {
    return always_runs(mode_) || replaces(place) || session_->admits(request(place), lead_);
  }
  bool is_drawn(std::size_t place) const { return !drawn_.empty() && drawn_[place]; }
  std::int64_t run_us_per_row() const {
    return run_->run_us() / static_cast<std::int64_t>(running_.size());
  }
  // Returns the row of the run's result that belongs to running_keys_[k].
  std::size_t place_in_run(std::size_t k) const {
    return is_whole_run_ ? row_of(running_keys_[k]) : k;
  }

  BatchKeys keys_;
  std::map<std::int64_t, std::string> own_signatures_;  // by length; empty: no rows are padded
  tensor::RowsOutput output_;
  RowProof proof_;
  std::vector<RowCheck> checks_;  // to be made
  std::optional<Unchecked> unchecked_;
  // The module's own result, for which a check run followed; or all rows together.
  std::optional<tensor::Flat> whole_;
  std::optional<LearnedPadding> learned_;
  bool is_padding_refused_ = false;  // in this call, whose whole input is run then
  std::optional<Pending> pending_;

  bool is_begun_ = false;
  bool compares_input_ = false;  // decided once for all its look-ups
  bool needs_whole_input_ = false;
  bool is_refused_ = false;   // the last run's result may not be kept
  bool was_tried_ = false;    // trials followed a run
  bool was_checked_ = false;  // a check run followed a run
  bool has_failed_check_ = false;
  bool is_overwritten_ = false;  // it wrote into the memory of the result
  bool has_looked_up_proof_ = false;
  bool can_check_ = true;
  bool has_fixed_shape_ = false;  // a check run must have the shape of the batch
  bool are_unproven_ = false;     // the last result is stored for batches of one
  bool is_whole_run_ = false;     // the whole input is run, repeated keys included
  // True at the places in keys_.distinct() whose stored value must not be found again. Empty:
  // nowhere.
  std::vector<bool> replaces_;
  // True at the places whose rows are compared with what is stored (verify_share). Empty: nowhere.
  std::vector<bool> drawn_;
  // Places in keys_.distinct() that this thread has to run, and that other threads are running.
  std::vector<std::size_t> mine_;
  std::vector<std::size_t> awaited_;
  // The rows that are being run, and the places of the keys that get values from them.
  std::vector<std::int64_t> running_;
  std::vector<std::size_t> running_keys_;
  std::vector<cache::InputSample> samples_;  // one for each of running_keys_
};

}  // namespace modcache::module
