// SPDX-License-Identifier: Apache-2.0
//
// Call: one call of a cached module with one key, from the question to the answer.
//
//     Call call(parts, key);
//     if (auto hit = call.lookup()) return <hand the hit out>;
//     call.begin_run();  result = <run the module>;  call.finish(result, facts);
//
// The two halves are apart because an eager Python module is run by Python. Used by one thread at
// a time. RowsCall (rows_call.h) is the same for one key per row.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cache/cache.h"
#include "module/module_run.h"
#include "tensor/input_sampler.h"
#include "tensor/whole_value.h"

namespace modcache::module {

class Call {
 public:
  Call(CallParts parts, std::string key);
  ~Call() { abandon(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What is cached; null when the module has to be run. Waits while another thread runs the same
  // key.
  std::shared_ptr<const tensor::WholeValue> lookup();
  // What lookup() gave cannot be used after all: the module is run, and its result replaces it.
  void reject_hit();

  // Whose fingerprint the scope is, where the module came after the call.
  void note_weights(std::shared_ptr<const WatchedContents> weights) {
    parts_.weights = std::move(weights);
  }
  void begin_run(ModuleRun::Time started = std::chrono::steady_clock::now());
  // Keeps `result` unless a rule forbids it, counts, and warns once. Throws under strict=true.
  void finish(const tensor::Flat& result, const RunFacts& facts);

  // The module raised: nothing is kept, and waiters go on.
  void abandon();

  const CallParts& parts() const { return parts_; }
  const Outcome& outcome() const { return outcome_; }

 private:
  cache::Request request() const {
    return {context_, key_, parts_.input.signature, &input_, /*row=*/0};
  }
  std::shared_ptr<const tensor::WholeValue> find();
  // What the entry will keep of the input, which the run may change.
  void take_sample();
  bool keep(const tensor::Flat& result, const RunFacts& facts);
  // Whether there was something to compare with.
  bool compare(const tensor::Flat& result);

  CallParts parts_;
  tensor::InputSampler input_;
  std::optional<cache::InputSample> sample_;
  std::string key_;
  cache::SessionPtr session_;
  cache::Mode mode_;
  cache::ContextPtr context_;
  cache::SingleFlight::Lead lead_;
  bool grad_is_unknown_ = false;
  bool replaces_;  // what is stored under the key, which must not be found again
  std::optional<ModuleRun> run_;
  Outcome outcome_;
};

}  // namespace modcache::module
