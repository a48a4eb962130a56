// SPDX-License-Identifier: Apache-2.0
//
// The rules of what is never cached: inputs, modules and results. Each refusal is counted, and
// warned about once; with strict=true it is an error. Others gather the evidence (observation.h,
// the callers, tensor/storable.h); row_proof.h has the rules of rows.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "module/call/call_parts.h"
#include "module/call/observation.h"
#include "tensor/input.h"
#include "tensor/tree.h"

namespace modcache::module {

// Why a result may not be stored.
struct Refusal {
  cache::Counter counter;
  const char* cause;  // "grad", "identity", "impure", "type"
  std::string message;
};
// Returns nothing when the result may be stored.
std::optional<Refusal> refusal_of(const CallParts& parts, const tensor::Flat& result,
                                  const RunFacts& facts, const Observation& run);

// Counts `rows` under `counter`, warns once per `cause` and method, and returns false. Throws under
// strict=true.
bool refuse(const CallParts& parts, cache::Counter counter, std::int64_t rows, const char* cause,
            const std::string& message);
// Refuses a module that has no fingerprint; `why` says which part of it has none.
void refuse_unidentified(const CallParts& parts, std::int64_t rows, const std::string& why);
// Refuses a call whose input the library cannot be given. `why` completes the text "not caching
// X: ". Does nothing in mode `off` but to count it.
void refuse_call(const CallParts& parts, std::int64_t rows, const std::string& why,
                 cache::Counter counter = cache::Counter::kBypassedType);
// Sets parts.input. Returns false when the input forbids caching; the call was then refused.
bool read_input(CallParts& parts, tensor::InputSummary input, std::int64_t rows);
bool read_input(CallParts& parts, const at::IValue& input, tensor::Per per, std::int64_t rows);

// Returns the message of a refusal: "not caching X: " and the reason.
std::string not_caching(const CallParts& parts, const std::string& why);

// Returns whether the mode is off. Then the call is to be run uncached, and its `rows` were
// counted.
bool is_bypassed_by_mode(const CallParts& parts, std::int64_t rows);

// Returns CallParts::grad_pattern. `of_module` is a hash of which of the module's tensors require
// grad; 0 when none does.
std::uint64_t grad_pattern(std::uint64_t of_module, const tensor::InputSummary& input);
// Remember that results under this scope, method, arguments and pattern of requires-grad have no
// graph, which a hit would cut off. Until that is known, the module is run once to learn it. It is
// known where nothing requires grad.
bool is_grad_unknown(const CallParts& parts);
void note_graph_free(const CallParts& parts);

// Returns whether the weights are unchanged after a run, as far as
// TensorWatch::is_unchanged_after() sees. A change is no fault of the module: the result is not
// stored, and the next call hashes the weights again.
bool are_weights_unchanged(const CallParts& parts, const RunFacts& facts, std::int64_t run_us);

enum class Comparison { kNothingStored, kSame, kDifferent };
// Compares the result that `fresh` gives with the stored value of key i, as the mode `verify` does;
// counts and logs a difference. `fresh` is not called when there is no stored value. `difference`,
// where given, says what differs. A failure of the cache counts as no difference.
Comparison compare_with_stored(const CallParts& parts, const cache::Keys& keys, std::size_t i,
                               const std::function<tensor::Flat()>& fresh,
                               std::string* difference = nullptr);

// Counts and logs that a result could not be "stored", "verified" or "looked up" because the cache
// failed; `what` is that word.
void report_failure(const CallParts& parts, const char* what, const std::exception& error);

}  // namespace modcache::module
