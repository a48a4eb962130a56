// SPDX-License-Identifier: Apache-2.0
//
// ModuleRun: one run of a module, and the verdict on what it returned: everything that forbids
// keeping a result is decided here. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "cache/cache.h"
#include "module/observation.h"
#include "module/watched_contents.h"
#include "tensor/input.h"
#include "tensor/tree.h"

namespace modcache::module {

struct CallParts {
  std::string scope;  // final: the fingerprint where the caller gave none; empty: unknown
  std::string method;
  std::string class_name;  // for messages
  // 0: grad mode is off, or neither the module's tensors nor the input's require grad.
  std::uint64_t grad_pattern = 0;
  tensor::InputSummary input;
  // Of the module whose fingerprint the scope is; null: the scope was given, or RunFacts has them.
  std::shared_ptr<const WatchedContents> weights;
  // What tensor::arithmetic_state() was when the module was recorded; none: that of this thread.
  std::optional<std::string> arithmetic;

  std::string arithmetic_state() const {
    return arithmetic.has_value() ? *arithmetic : tensor::arithmetic_state();
  }
  std::string who() const { return class_name + "." + method; }
};

// What only who runs the module can know of a run.
struct RunFacts {
  std::string impure_because;       // what the caller saw change, or empty
  std::int64_t requiring_grad = 0;  // tensors of the module that require grad, for the message
  bool is_scripted = false;         // what cures that differs
  // As CallParts::weights, where the module was not there yet when the call began.
  std::shared_ptr<const WatchedContents> weights = nullptr;
};

// Whether what the result was computed with is what the scope says, as far as that is known now. A
// change is no fault of the module: the result is not kept, and the next call hashes anew.
WatchedContents::Verdict judge_weights(const CallParts& parts, const RunFacts& facts,
                                       std::int64_t run_us);

// Counts `rows` under `counter`, warns once for each `cause` and method, and returns false. Throws
// under strict=true.
bool refuse(const CallParts& parts, const cache::Session& session, cache::Counter counter,
            std::int64_t rows, const char* cause, const std::string& message);

// What came of the runs of a call.
struct Outcome {
  bool has_stored = false;
  // The rule that forbade keeping the last result ("grad", "impure", "type"), and the warning;
  // empty: none did.
  std::string refused_for;
  std::string refusal;
};

// Whether the mode is off: the call is to be run uncached, and its `rows` were counted.
bool is_bypassed_by_mode(std::int64_t rows);

// Refuses a module that has no fingerprint; `why` says what of it has none. Throws under
// strict=true.
void refuse_unidentified(const CallParts& parts, std::int64_t rows, const std::string& why);

// Fills in parts.input. False: it forbids caching, and the call was refused.
bool read_input(CallParts& parts, const at::IValue& input, tensor::Per per, std::int64_t rows);

// CallParts::grad_pattern while grad mode is on. `of_module`: which of its tensors require grad,
// hashed; 0 when none does.
std::uint64_t grad_pattern(std::uint64_t of_module, const tensor::InputSummary& input);

class ModuleRun {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `started`: for a module that ran before anything was to be observed.
  explicit ModuleRun(Time started = std::chrono::steady_clock::now()) : started_(started) {}

  // For the module's own time: what follows is not counted.
  void end();
  std::int64_t run_us() const { return run_us_; }

  // Whether the result may be kept; else this is counted, and warned about once. Throws under
  // strict=true. REQUIRES: ended.
  // `rows`: what is counted. `outcome` gets the refusal, also when this throws.
  bool may_keep(const CallParts& parts, const cache::Session& session, const tensor::Flat& result,
                const RunFacts& facts, std::int64_t rows, Outcome& outcome) const;

 private:
  struct Verdict {
    cache::Counter counter;
    const char* cause;
    std::string message;
  };
  // Nothing: the result may be kept.
  std::optional<Verdict> judge(const CallParts& parts, const tensor::Flat& result,
                               const RunFacts& facts) const;

  Observation observation_;
  Time started_;
  std::int64_t run_us_ = 0;
};

// Results under this scope, method, arguments and pattern of requires-grad were seen to carry no
// graph, which a hit would cut off: before that is known, the module is run once to learn it.
bool is_known_graph_free(const CallParts& parts);
void note_graph_free(const CallParts& parts);

// The mode `verify` found a stored result that differs from a fresh one: counted, logged.
void report_difference(const CallParts& parts, std::string_view key, const std::string& difference);

// A result could not be "kept", or "verified", for a reason of the cache's own: counted, logged.
void report_failure(const CallParts& parts, const char* what, const std::exception& error);

}  // namespace modcache::module
