// SPDX-License-Identifier: Apache-2.0
#include "module/call/rules.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/process_wide.h"
#include "tensor/difference.h"
#include "tensor/stored_format.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

constexpr char kEagerCure[] = "m.requires_grad_(False).eval(), or call it under torch.no_grad()";
// A ScriptModule has no requires_grad_, and once it has run with gradients, torch's executor
// returns results that require grad even under no_grad.
constexpr char kScriptedCure[] =
    "for p in m.parameters(): p.requires_grad_(False), then m.eval() (torch.no_grad() does not "
    "cure "
    "a scripted module that has run with gradients)";

// How Python marks the reason for which a module cannot be identified (_call/eager.py).
constexpr char kUnidentified[] = "unidentified: ";

using cache::Counter;

// Modes verify and refresh and verify_share accept a difference of so much, relative to the largest
// number of a tensor.
constexpr double kVerifyTolerance = 1e-4;

// Says first why the result requires grad, then how to have it cached.
std::string why_grad(const CallParts& parts, const RunFacts& facts) {
  const std::string no_grad = "call it under torch.no_grad()";
  if (facts.requiring_grad > 0) {
    return "its result requires grad (" + std::to_string(facts.requiring_grad) + " tensors of " +
           parts.name() + " require grad). If the module is frozen, say so: " +
           (facts.is_scripted ? kScriptedCure : kEagerCure);
  }
  if (facts.is_checkpointed && parts.input.requiring_grad.count == 0) {
    return "gradient checkpointing is on in " + parts.name() +
           ", and its result requires grad. A frozen module needs no checkpoints: "
           "m.gradient_checkpointing_disable() and m.disable_input_require_grads(), or " +
           no_grad;
  }
  if (parts.input.requiring_grad.count > 0) {
    return "the input requires grad, and so does its result (no tensor of " + parts.name() +
           " does). Pass x.detach(), or " + no_grad;
  }
  return "its result requires grad, though neither the input nor a tensor of " + parts.name() +
         " does: a hook, or its code, makes it so. Return it detached, or " + no_grad;
}

// Returns whether evaluation mode would probably have prevented `impure`.
bool comes_of_training(const std::string& impure, const RunFacts& facts) {
  constexpr const char* kSigns[] = {"dropout",      "rrelu",       "attention",
                                    "running_mean", "running_var", "num_batches_tracked"};
  return facts.is_training && std::any_of(std::begin(kSigns), std::end(kSigns), [&](auto sign) {
           return impure.find(sign) != std::string::npos;
         });
}

std::string why_impure(const CallParts& parts, const RunFacts& facts, const std::string& impure) {
  if (comes_of_training(impure, facts)) {
    return parts.name() + " is in training mode: call m.eval()" +
           (facts.is_scripted ? "" : ", or modcache.cached(m, ..., freeze=True)") + " (" + impure +
           ")";
  }
  return "its result is no function of state and input: " + impure;
}

std::string why_type(const std::string& why) {
  if (why.find("transformers.cache_utils.") != std::string::npos) {
    return "it also returns past keys and values (its result is " + why +
           "): pass use_cache=False, or set m.config.use_cache = False";
  }
  return "its result is " + why;
}

class GraphFree : public ProcessWide<GraphFree> {
 public:
  bool contains(const CallParts& parts) {
    const Digest128 address = address_of(parts);
    MutexLock lock(mutex);
    return known_.count(address) != 0;
  }
  void insert(const CallParts& parts) {
    const Digest128 address = address_of(parts);
    MutexLock lock(mutex);
    // Forgetting costs one run per module, and bounds the memory of training with ever new weights.
    if (known_.size() >= kMostKnown) known_.clear();
    known_.insert(address);
  }

 private:
  static constexpr std::size_t kMostKnown = 1 << 16;

  static Digest128 address_of(const CallParts& parts) {
    Xxh3Hasher hasher;
    hasher.add(parts.scope);
    hasher.add(parts.method);
    hasher.add(parts.input.arguments);
    hasher.add(parts.grad_pattern);
    return hasher.digest();
  }

  std::unordered_set<Digest128, Digest128Hash> known_ MODCACHE_GUARDED_BY(mutex);
};

void report_difference(const CallParts& parts, std::string_view key,
                       const std::string& difference) {
  parts.cache->counters().add(parts.scope, Counter::kVerifyDifferences);
  log(LogLevel::kWarning, "verify:" + parts.who(),
      "verify: what is stored for key '" + std::string(key.substr(0, 200)) + "' of " + parts.who() +
          " is not what the module returns: " + difference +
          ". The fresh result was returned; clear the scope, or run with mode=refresh");
}

}  // namespace

bool refuse(const CallParts& parts, Counter counter, std::int64_t rows, const char* cause,
            const std::string& message) {
  parts.cache->counters().add(parts.scope, counter, rows);
  TORCH_CHECK(!parts.settings().strict, "modcache (strict=true): ", message);
  // The scope is not part of the cause: it changes with the weights, and would repeat the warning.
  log_once(LogLevel::kWarning, std::string(cause) + ':' + parts.who(), message);
  return false;
}

std::string not_caching(const CallParts& parts, const std::string& why) {
  return "not caching " + parts.who() + ": " + why;
}

bool is_bypassed_by_mode(const CallParts& parts, std::int64_t rows) {
  if (parts.mode != cache::Mode::kOff) return false;
  parts.cache->counters().add(Counter::kBypassedOff, rows);
  return true;
}

void refuse_unidentified(const CallParts& parts, std::int64_t rows, const std::string& why) {
  refuse(parts, Counter::kBypassedIdentity, rows, "identity",
         not_caching(parts, "it cannot be identified, since " + why +
                                "; give it a scope=\"name@version\""));
}

void refuse_call(const CallParts& parts, std::int64_t rows, const std::string& why,
                 Counter counter) {
  if (rows == 0 || is_bypassed_by_mode(parts, rows)) return;
  const std::string cause = "input:" + why;
  refuse(parts, counter, rows, cause.c_str(), not_caching(parts, why));
}

std::optional<Refusal> refusal_of(const CallParts& parts, const tensor::Flat& result,
                                  const RunFacts& facts, const Observation& run) {
  if (result.requires_grad()) {
    return Refusal{Counter::kBypassedGrad, "grad", not_caching(parts, why_grad(parts, facts))};
  }
  if (facts.impure_because.rfind(kUnidentified, 0) == 0) {
    return Refusal{Counter::kBypassedIdentity, "identity",
                   not_caching(parts, "it cannot be identified, since " +
                                          facts.impure_because.substr(sizeof kUnidentified - 1))};
  }
  const std::string& impure =
      facts.impure_because.empty() ? run.impure_because() : facts.impure_because;
  if (!impure.empty()) {
    return Refusal{Counter::kBypassedImpure, "impure",
                   not_caching(parts, why_impure(parts, facts, impure))};
  }
  if (const std::string why = tensor::why_not_storable(result); !why.empty()) {
    return Refusal{Counter::kBypassedType, "type", not_caching(parts, why_type(why))};
  }
  return std::nullopt;
}

namespace {

bool check_input(const CallParts& parts, std::int64_t rows) {
  if (parts.input.why_not_cacheable.empty()) return true;
  return refuse(parts, Counter::kBypassedType, rows, "input",
                not_caching(parts, "its input holds a tensor or value that is " +
                                       parts.input.why_not_cacheable));
}

}  // namespace

bool read_input(CallParts& parts, tensor::InputSummary input, std::int64_t rows) {
  parts.input = std::move(input);
  return check_input(parts, rows);
}

bool read_input(CallParts& parts, const at::IValue& input, tensor::Per per, std::int64_t rows) {
  tensor::summarize_input(parts.input, input, per,
                          parts.padding.has_value() ? &*parts.padding : nullptr);
  return check_input(parts, rows);
}

std::uint64_t grad_pattern(std::uint64_t of_module, const tensor::InputSummary& input) {
  if (!at::GradMode::is_enabled()) return 0;
  if (of_module == 0 && input.requiring_grad.count == 0) return 0;
  const std::uint64_t both = of_module * 31 + input.requiring_grad.hash;
  // 0 stands for no gradients at all.
  return both == 0 ? 1 : both;
}

bool are_weights_unchanged(const CallParts& parts, const RunFacts& facts, std::int64_t run_us) {
  const auto& weights = facts.weights != nullptr ? facts.weights : parts.weights;
  return weights == nullptr || weights->is_unchanged_after(std::chrono::microseconds(run_us));
}

bool is_grad_unknown(const CallParts& parts) {
  return parts.grad_pattern != 0 && !GraphFree::instance().contains(parts);
}
void note_graph_free(const CallParts& parts) { GraphFree::instance().insert(parts); }

Comparison compare_with_stored(const CallParts& parts, const cache::Keys& keys, std::size_t i,
                               const std::function<tensor::Flat()>& fresh,
                               std::string* difference) {
  try {
    const cache::EntryPtr entry = parts.cache->find_to_compare(keys.only({i}));
    if (entry == nullptr) return Comparison::kNothingStored;
    const tensor::StoredValue stored = tensor::stored_value(*entry->value);
    const std::string found =
        tensor::difference(fresh(), stored.value, stored.layout->tolerance(kVerifyTolerance));
    if (difference != nullptr) *difference = found;
    if (found.empty()) return Comparison::kSame;
    report_difference(parts, keys.keys[i], found);
    return Comparison::kDifferent;
  } catch (const std::exception& error) {
    report_failure(parts, "verified", error);
    return Comparison::kSame;
  }
}

void report_failure(const CallParts& parts, const char* what, const std::exception& error) {
  parts.cache->counters().add(parts.scope, Counter::kErrors);
  log(LogLevel::kWarning, std::string(what) + ':' + parts.name(),
      "a result of " + parts.who() + " could not be " + what + ": " + tensor::text_of(error));
}

}  // namespace modcache::module
