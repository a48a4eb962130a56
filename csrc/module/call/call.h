// SPDX-License-Identifier: Apache-2.0
//
// Call: one call of a cached module with one key, from the lookup to the result.
//
//     Call call(parts, key);
//     if (auto hit = call.lookup()) return <hand the hit out>;
//     call.begin_run();  result = <run the module>;  call.finish_run(result, facts);
//
// The steps are separate because Python runs an eager module itself. Used by one thread at a time.
// RowsCall (rows_call.h) is its counterpart for one key per row.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cache/input_sample.h"
#include "module/call/open_call.h"
#include "tensor/whole_value.h"

namespace modcache::module {

class Call : public OpenCall {
 public:
  Call(CallParts parts, std::string key);

  // Returns the stored value; null when the module has to be run, also after an error of the cache.
  // Waits while another thread runs the same key.
  std::shared_ptr<const tensor::WholeValue> lookup();
  // Call it when the value of lookup() has the wrong type: the module is run, and its result
  // replaces the stored one.
  void reject_hit();

  // REQUIRES: the lookup said that the module has to run, or its value is not used. Not where the
  // call is_bypassed().
  void begin_run(ModuleRun::Time started = std::chrono::steady_clock::now());
  // Stores `result` unless a rule forbids it, counts, and warns once. Throws under strict=true.
  void finish_run(const tensor::Flat& result, const RunFacts& facts);

 private:
  cache::Request request() const {
    return {context_, key_, parts_.input.signature, &input_, /*row=*/0};
  }
  std::shared_ptr<const tensor::WholeValue> find();
  // Samples the input for the entry, once and before the run, which may change the input.
  void take_sample();
  bool keep(const tensor::Flat& result, const RunFacts& facts);

  std::optional<cache::InputSample> sample_;
  std::string key_;
  bool replaces_;          // the stored value under the key must not be found again
  bool is_drawn_ = false;  // the result is compared with the stored value (verify_share)
};

}  // namespace modcache::module
