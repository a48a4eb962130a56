// SPDX-License-Identifier: Apache-2.0
//
// ModuleRun: one run of a module, and the verdict on its result. judge() decides whether a result
// may be stored, on evidence that others gather: observation.h, the callers, tensor/storable.h,
// row_proof.h. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cache/cache.h"
#include "module/call/observation.h"
#include "module/watch/watched_contents.h"
#include "tensor/input.h"
#include "tensor/tree.h"

namespace modcache::module {

struct CallParts {
  std::string scope;  // final: the fingerprint where the caller gave none; empty: not known
  std::string method;
  std::string class_name;  // for messages
  // 0: grad mode is off, or neither the module's tensors nor the input's require grad.
  std::uint64_t grad_pattern = 0;
  tensor::InputSummary input;
  // Where rows have lengths of their own. Set before `input`, which depends on it.
  std::optional<tensor::RowPadding> padding;
  // The input has something that may or may not go row by row, such as a list with as many items as
  // there are rows. No rows are taken out of such an input: all of it is run where one is missing.
  bool runs_whole = false;
  // The results of two rows may differ in shape.
  bool is_ragged = false;
  // Rows with different keys have different texts, which the library does not see.
  bool has_unseen_rows = false;
  // The weights of the module whose fingerprint the scope is. Null when the caller gave the scope,
  // or when RunFacts has them.
  std::shared_ptr<const WatchedContents> weights;
  // tensor::arithmetic_state() at the time when the module was recorded; nothing: that of this
  // thread.
  std::optional<std::string> arithmetic;

  std::string arithmetic_state() const {
    return arithmetic.has_value() ? *arithmetic : tensor::arithmetic_state();
  }
  std::string who() const { return class_name + "." + method; }
};

// Facts of a run that only the code which runs the module can know.
struct RunFacts {
  std::string impure_because;       // the change that the caller saw, or empty
  std::int64_t requiring_grad = 0;  // tensors of the module that require grad, for the message
  // The advice in the message depends on these.
  bool is_scripted = false;
  bool is_training = false;      // any part of the module is in training mode
  bool is_checkpointed = false;  // gradient checkpointing is on in a part of it
  // See CallParts::weights; set for a module that was loaded during the call.
  std::shared_ptr<const WatchedContents> weights = nullptr;
};

// Returns whether the weights that the result was computed with still are those of the scope, as
// far as that is known now. A change is no fault of the module: the result is not stored, and the
// next call hashes anew.
WatchedContents::Verdict judge_weights(const CallParts& parts, const RunFacts& facts,
                                       std::int64_t run_us);

// Counts `rows` under `counter`, warns once per `cause` and method, and returns false. Throws under
// strict=true.
bool refuse(const CallParts& parts, const cache::Session& session, cache::Counter counter,
            std::int64_t rows, const char* cause, const std::string& message);

// The outcome of the runs of a call.
struct Outcome {
  bool has_stored = false;
  // The rule that forbade storing the last result ("grad", "impure", "type"), and the warning;
  // empty when none did.
  std::string refused_for;
  std::string refusal;
};

// Returns the mode. If it is off the call is to be run uncached, and its `rows` were counted.
cache::Mode mode_of_call(std::int64_t rows);
inline bool is_bypassed_by_mode(std::int64_t rows) {
  return mode_of_call(rows) == cache::Mode::kOff;
}

// Refuses a module that has no fingerprint; `why` says which part of it has none. Throws under
// strict=true.
void refuse_unidentified(const CallParts& parts, std::int64_t rows, const std::string& why);

// Counts and warns of a call whose input the library cannot be given. `why` completes the text "is
// not cached: ". Throws under strict=true.
void bypass(const CallParts& parts, std::int64_t rows, const std::string& why,
            cache::Counter counter = cache::Counter::kBypassedType);

// Fills in parts.input. Returns false when the input forbids caching; the call was then refused.
bool read_input(CallParts& parts, tensor::InputSummary input, std::int64_t rows);

// Returns the context that the entries of a call are found under.
cache::ContextPtr context_of(const cache::Session& session, const CallParts& parts,
                             tensor::Per per);
// Does the same for parts that are not together; `arithmetic` is CallParts::arithmetic_state().
cache::ContextPtr context_of(const cache::Session& session, std::string_view scope,
                             std::string_view method, tensor::Per per, std::string_view arguments,
                             std::string_view arithmetic);

// Returns CallParts::grad_pattern. `of_module` is a hash of which of the module's tensors require
// grad; 0 when none does.
std::uint64_t grad_pattern(std::uint64_t of_module, const tensor::InputSummary& input);

class ModuleRun {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `started` is in the past for a module that ran before the observation could begin.
  explicit ModuleRun(Time started = std::chrono::steady_clock::now()) : started_(started) {}

  // Ends the module's own time, so that storing the result is not counted.
  void end();
  std::int64_t run_us() const { return run_us_; }

  // Returns whether the result may be stored; otherwise counts that and warns once. Throws under
  // strict=true. REQUIRES: ended.
  // `rows` is the number that is counted. `outcome` gets the refusal, also when this throws.
  bool may_keep(const CallParts& parts, const cache::Session& session, const tensor::Flat& result,
                const RunFacts& facts, std::int64_t rows, Outcome& outcome) const;
  // Returns the same without counting, warning and throwing.
  bool may_be_kept(const CallParts& parts, const tensor::Flat& result,
                   const RunFacts& facts) const {
    return !judge(parts, result, facts).has_value();
  }

 private:
  struct Verdict {
    cache::Counter counter;
    const char* cause;
    std::string message;
  };
  // Returns nothing when the result may be stored.
  std::optional<Verdict> judge(const CallParts& parts, const tensor::Flat& result,
                               const RunFacts& facts) const;

  Observation observation_;
  Time started_;
  std::int64_t run_us_ = 0;
};

// Remember that results under this scope, method, arguments and pattern of requires-grad have no
// graph, which a hit would cut off. Until that is known, the module is run once to learn it. It is
// known where nothing requires grad.
bool is_grad_unknown(const CallParts& parts);
void note_graph_free(const CallParts& parts);

enum class Comparison { kNothingStored, kSame, kDifferent };

// Compares the result that `fresh` gives with the stored value, as the mode `verify` does; counts
// that, and counts and logs a difference. `fresh` is not called when there is no stored value.
// `difference`, where given, says what differs. A failure of the cache counts as no difference.
Comparison compare_with_stored(const CallParts& parts, cache::Session& session,
                               const cache::Request& request,
                               const std::function<tensor::Flat()>& fresh,
                               std::string* difference = nullptr);

// Counts and logs that a result could not be "kept", "verified" or "looked up" because the cache
// failed; `what` is that word.
void report_failure(const CallParts& parts, const char* what, const std::exception& error);

}  // namespace modcache::module
