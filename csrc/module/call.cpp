// SPDX-License-Identifier: Apache-2.0
#include "module/call.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <unordered_set>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "tensor/tensor_value.h"

namespace modcache::module {
namespace {

using cache::Counter;

// Under which scope, method and pattern of requires-grad results were seen to carry no graph.
class GraphFree {
 public:
  GraphFree() { hold_across_fork(mutex_); }

  bool contains(const CallParts& parts) {
    const Digest128 address = address_of(parts);
    MutexLock lock(mutex_);
    return known_.count(address) != 0;
  }
  void insert(const CallParts& parts) {
    const Digest128 address = address_of(parts);
    MutexLock lock(mutex_);
    // Forgetting costs one run each; it bounds the memory of training with ever new weights.
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

  Mutex mutex_;
  std::unordered_set<Digest128, Digest128Hash> known_ MODCACHE_GUARDED_BY(mutex_);
};

// Never destroyed: threads of the host may call while the process exits.
GraphFree& graph_free() {
  static auto* const instance = new GraphFree;
  return *instance;
}

}  // namespace

Call::Call(CallParts parts)
    : parts_(std::move(parts)),
      session_(cache::Cache::instance().session()),
      mode_(cache::Cache::instance().mode()),
      context_(cache::make_context({session_->settings().name_space, parts_.scope, parts_.method,
                                    cache::Form::kWhole, parts_.input.arguments,
                                    tensor::arithmetic_state()})),
      grad_is_unknown_(parts_.grad_pattern != 0 && !graph_free().contains(parts_)) {}

Call::~Call() { abandon(); }

cache::Request Call::request() const { return {context_, parts_.key, parts_.input.signature}; }

std::optional<at::Tensor> Call::lookup() {
  if (grad_is_unknown_ || parts_.scope.empty() || !may_read(mode_)) return std::nullopt;
  const cache::EntryPtr entry = session_->lookup(request(), may_write(mode_), lead_);
  if (entry == nullptr) return std::nullopt;
  return static_cast<const tensor::TensorValue&>(*entry->value).hand_out(parts_.input.device);
}

void Call::begin_run() {
  observation_.emplace();
  started_ = std::chrono::steady_clock::now();
}

void Call::refuse(Counter counter, std::string_view cause, const std::string& message) {
  lead_.give_up();
  auto& cache = cache::Cache::instance();
  cache.counters().add(counter);
  TORCH_CHECK(!session_->settings().strict, "modcache (strict=true): ", message);
  // The scope changes with the weights, so it is no part of what is warned about once.
  log_once(LogLevel::kWarning, std::string(cause) + ':' + parts_.class_name + ':' + parts_.method,
           message);
}

at::Tensor Call::finish(const at::IValue& result, const std::string& impure_because,
                        std::int64_t requiring_grad) {
  const auto run_time = std::chrono::steady_clock::now() - started_;
  observation_->end();
  const std::string who = parts_.class_name + "." + parts_.method;
  TORCH_CHECK(result.isTensor(), "cache::lookup_or_run: ", who, " returned ", result.tagKind(),
              ", but this operator caches one Tensor; use cache::lookup_or_run_any for structured "
              "results");
  const at::Tensor& tensor = result.toTensor();
  if (tensor.defined() && tensor.requires_grad()) {
    refuse(Counter::kBypassedGrad, "grad",
           "the result of " + who + " requires grad and is not cached (" +
               std::to_string(requiring_grad) + " tensors of " + parts_.class_name +
               " require grad). If the module is frozen, say so: m.requires_grad_(False).eval(), "
               "or call it under torch.no_grad()");
    return tensor;
  }
  const std::string& impure =
      impure_because.empty() ? observation_->impure_because() : impure_because;
  if (!impure.empty()) {
    refuse(Counter::kBypassedImpure, "impure",
           "the result of " + who +
               " is not cached, for it is no function of state and input: " + impure);
    return tensor;
  }
  if (const char* why = tensor::why_not_storable(tensor)) {
    refuse(Counter::kBypassedType, "type", "the result of " + who + " is not cached: it is " + why);
    return tensor;
  }
  if (grad_is_unknown_) graph_free().insert(parts_);
  auto& counters = cache::Cache::instance().counters();
  const auto run_us = std::chrono::duration_cast<std::chrono::microseconds>(run_time).count();
  counters.add(Counter::kMisses);
  counters.add(Counter::kRunUs, run_us);
  if (may_write(mode_) && !parts_.scope.empty()) keep(tensor, run_us);
  lead_.give_up();
  return tensor;
}

// The model has its result: nothing that goes wrong from here on may take it away.
void Call::keep(const at::Tensor& result, std::int64_t run_us) {
  try {
    // A run that only taught whether there is a graph does not replace what is there.
    if (grad_is_unknown_ && session_->contains(request())) return;
    session_->store(request(), std::make_shared<const cache::Entry>(cache::Entry{
                                   tensor::TensorValue::copy_of(result, parts_.input.device),
                                   parts_.input.signature, run_us}));
    lead_.stored();
  } catch (const std::exception& error) {
    cache::Cache::instance().counters().add(Counter::kErrors);
    log(LogLevel::kWarning, "keep:" + parts_.class_name,
        "a result of " + parts_.class_name + "." + parts_.method +
            " could not be kept: " + error.what());
  }
}

void Call::abandon() {
  if (observation_.has_value()) observation_->end();
  lead_.give_up();
}

}  // namespace modcache::module
