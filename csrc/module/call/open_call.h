// SPDX-License-Identifier: Apache-2.0
//
// OpenCall: the common part of Call and RowsCall: what a call is asked under, the session and mode
// that it uses from its start to its end, its lead, its run, and what may be done with the result.
// Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "cache/cache.h"
#include "module/call/module_run.h"
#include "tensor/input_sampler.h"

namespace modcache::module {

// Returns what reads the values of a call's input. `parts` must outlive it.
tensor::InputSampler sampler_of(const CallParts& parts, tensor::Per per);

class OpenCall {
 public:
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  // Sets the weights that the scope is the fingerprint of, for a module that was loaded during the
  // call.
  void note_weights(std::shared_ptr<const WatchedContents> weights) {
    parts_.weights = std::move(weights);
  }
  // Ends a run that raised: nothing of it is stored, and threads that wait for its result continue.
  void abandon();

  // After a lookup that found nothing: whether the call bypasses the cache (Session::bypasses), and
  // is to be run uncached. It was counted.
  bool is_bypassed() const { return is_bypassed_; }

  const CallParts& parts() const { return parts_; }
  const Outcome& outcome() const { return outcome_; }

 protected:
  OpenCall(CallParts parts, tensor::Per per);
  ~OpenCall() { abandon(); }

  void start_run(ModuleRun::Time started) { run_.emplace(started); }

  // Returns whether the run's result is compared with the stored value, as under `verify`. It then
  // is no miss.
  bool is_verified() const {
    return may_read(mode_) && always_runs(mode_) && !parts_.scope.empty();
  }
  // Returns whether the mode and the scope allow storing.
  bool may_ever_store() const { return may_write(mode_) && !parts_.scope.empty(); }
  // Returns the same, and whether it is worth storing: the keys of the scope may have come with
  // other inputs too often.
  bool may_store() const {
    return may_ever_store() && (always_runs(mode_) || !session_->has_stopped_storing(parts_.scope));
  }
  // Returns whether the run was only needed to learn whether the result has a graph. Then its
  // result does not replace a stored value.
  bool is_stored_already(const cache::Request& request) const {
    return grad_is_unknown_ && !always_runs(mode_) && session_->is_near(request);
  }
  // Counts a run that no rule forbids to store, and remembers that its result has no graph.
  void count_run(std::int64_t misses);
  // The caller has its value: adds the time since this object was made to the histograms.
  void note_end() const;
  // Compares the result that `fresh` gives with the stored value. `is_drawn`: for verify_share.
  Comparison compare(const cache::Request& request, bool is_drawn,
                     const std::function<tensor::Flat()>& fresh) const;
  // Returns whether the weights are others by now than those of the scope, so that the result says
  // nothing of what is stored.
  bool has_other_weights(const RunFacts& facts) const;
  // `run_us` is the time that is noted for `value`.
  cache::EntryPtr entry_of(std::shared_ptr<const cache::Value> value, std::string_view signature,
                           const cache::InputSample& sample, std::int64_t run_us,
                           const ConfirmationPtr& confirmation) const;

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  CallParts parts_;
  tensor::InputSampler input_;
  cache::SessionPtr session_;
  cache::Mode mode_;
  cache::ContextPtr context_;
  // Until it is known that the result has no graph the module must run: a hit would cut it off.
  bool grad_is_unknown_;
  cache::SingleFlight::Lead lead_;
  bool is_bypassed_ = false;
  std::optional<ModuleRun> run_;
  bool was_miss_ = false;
  Outcome outcome_;
};

}  // namespace modcache::module
