// SPDX-License-Identifier: Apache-2.0
//
// Call: one call of a cached module, from the question to the answer.
//
//     Call call(...);
//     if (auto hit = call.lookup()) return *hit;
//     call.begin_run();  result = <run the module>;  return call.finish(result, ...);
//
// The two halves are apart because an eager Python module is run by Python. Everything that
// forbids keeping a result is decided in finish(). Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cache/cache.h"
#include "module/observation.h"
#include "tensor/input.h"

namespace modcache::module {

struct CallParts {
  std::string scope;  // final: the fingerprint where the caller gave none; empty: unknown
  std::string method;
  std::string key;
  std::string class_name;  // for messages
  // 0: grad mode is off, or neither the module's tensors nor the input's require grad.
  std::uint64_t grad_pattern = 0;
  tensor::InputSummary input;
};

class Call {
 public:
  explicit Call(CallParts parts);
  ~Call();

  // The cached result, ready to be handed out; nothing when the module has to be run.
  // Waits while another thread runs the same key.
  std::optional<at::Tensor> lookup();

  void begin_run();

  // Keeps `result` unless a rule forbids it, counts, warns once, and returns it unchanged.
  // `impure_because`: what the caller saw change, or empty. `requiring_grad`: how many tensors of
  // the module require grad, for the message.
  // Throws (torch's own error) when `result` is no Tensor, or under strict=true.
  at::Tensor finish(const at::IValue& result, const std::string& impure_because,
                    std::int64_t requiring_grad);

  // The module raised: nothing is kept, and waiters go on.
  void abandon();

 private:
  cache::Request request() const;
  void refuse(cache::Counter counter, std::string_view cause, const std::string& message);
  void keep(const at::Tensor& result, std::int64_t run_us);

  CallParts parts_;
  cache::SessionPtr session_;
  cache::Mode mode_;
  cache::ContextPtr context_;
  cache::SingleFlight::Lead lead_;
  // Under this pattern of requires-grad it is not known yet whether the result carries a graph,
  // which a hit would cut off: the module is run once to learn it.
  bool grad_is_unknown_ = false;
  std::optional<Observation> observation_;
  std::chrono::steady_clock::time_point started_;
};

// The operator's whole work for a TorchScript module.
// Throws for callers' mistakes; the module's own exceptions pass unchanged.
at::Tensor lookup_or_run(const at::IValue& module, const at::IValue& input, const std::string& key,
                         const std::string& scope, const std::string& method);

// The fingerprint that lookup_or_run uses. Throws when the module has none, saying why.
std::string fingerprint(const at::IValue& module, const std::string& method);

// Hashes everything anew, for all methods at their next call. Returns the fingerprint of forward;
// empty for a module that has no forward or no fingerprint.
std::string refresh_fingerprint(const at::IValue& module);

}  // namespace modcache::module
