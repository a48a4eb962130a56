// SPDX-License-Identifier: Apache-2.0
#include "module/call.h"

#include <exception>
#include <utility>

#include "base/log.h"
#include "tensor/difference.h"
#include "tensor/stored_value.h"

namespace modcache::module {

using cache::Counter;

Call::Call(CallParts parts, std::string key)
    : parts_(std::move(parts)),
      input_(parts_.input.tensors, tensor::Per::kCall),
      key_(std::move(key)),
      session_(cache::Cache::instance().session()),
      mode_(cache::Cache::instance().mode()),
      context_(cache::make_context({session_->settings().name_space, parts_.scope, parts_.method,
                                    cache::Form::kWhole, parts_.input.arguments,
                                    parts_.arithmetic_state()})),
      grad_is_unknown_(parts_.grad_pattern != 0 && !is_known_graph_free(parts_)),
      replaces_(always_runs(mode_)) {}

std::shared_ptr<const tensor::WholeValue> Call::lookup() {
  auto found = find();
  if (found == nullptr) take_sample();
  return found;
}

std::shared_ptr<const tensor::WholeValue> Call::find() {
  if (grad_is_unknown_ || parts_.scope.empty() || !may_read(mode_) || always_runs(mode_)) {
    return nullptr;
  }
  const cache::EntryPtr entry = session_->lookup(request(), may_write(mode_), lead_, &replaces_);
  if (entry == nullptr) return nullptr;
  return std::static_pointer_cast<const tensor::WholeValue>(entry->value);
}

void Call::take_sample() {
  if (sample_.has_value() || !may_write(mode_) || parts_.scope.empty()) return;
  sample_ = session_->sample_to_keep(input_, /*row=*/0);
}

void Call::reject_hit() {
  take_sample();
  replaces_ = true;
  cache::Cache::instance().counters().add(Counter::kKeyConflicts);
  log_once(LogLevel::kWarning, "other-type:" + parts_.who(),
           "a stored result of " + parts_.who() +
               " has another type than the method declares: it is computed anew, and replaced");
}

void Call::begin_run(ModuleRun::Time started) {
  take_sample();
  run_.emplace(started);
}

void Call::finish(const tensor::Flat& result, const RunFacts& facts) {
  // Also when this throws: whoever keeps the exception may keep this call, too.
  cache::SingleFlight::Lead lead = std::move(lead_);
  run_->end();
  if (!run_->may_keep(parts_, *session_, result, facts, 1, outcome_)) return;
  if (grad_is_unknown_) note_graph_free(parts_);
  auto& counters = cache::Cache::instance().counters();
  counters.add(Counter::kRunUs, run_->run_us());
  const bool is_verified = may_read(mode_) && always_runs(mode_) && !parts_.scope.empty();
  if (!is_verified || !compare(result)) counters.add(Counter::kMisses);
  const bool may_store = may_write(mode_) && !parts_.scope.empty() &&
                         (always_runs(mode_) || !session_->has_stopped_storing(parts_.scope));
  outcome_.has_stored = may_store && keep(result, facts);
  if (outcome_.has_stored) lead.stored();
}

// The model has its result: nothing that goes wrong from here on may take it away.
bool Call::keep(const tensor::Flat& result, const RunFacts& facts) {
  try {
    const auto weights = judge_weights(parts_, facts, run_->run_us());
    if (weights.is_changed) return false;
    const auto& settings = session_->settings();
    // A run that only taught whether there is a graph does not replace what is there.
    if (grad_is_unknown_ && !always_runs(mode_) && session_->contains(request())) return false;
    cache::Entry entry{tensor::WholeValue::copy_of(result, parts_.input.device, settings.dtype),
                       parts_.input.signature, run_->run_us(), now_us(), weights.confirmation};
    entry.sample = sample_.value_or(cache::InputSample());
    return session_->store(request(), std::make_shared<const cache::Entry>(std::move(entry)),
                           replaces_);
  } catch (const std::exception& error) {
    report_failure(parts_, "kept", error);
    return false;
  }
}

bool Call::compare(const tensor::Flat& result) {
  try {
    const cache::EntryPtr entry = session_->peek(request());
    if (entry == nullptr) return false;
    const tensor::StoredValue stored = tensor::stored_value(*entry->value);
    const tensor::Tolerance tolerance = stored.layout->tolerance(session_->settings().verify_rtol);
    const std::string found = tensor::difference(result, stored.value, tolerance);
    if (!found.empty()) report_difference(parts_, key_, found);
  } catch (const std::exception& error) {
    report_failure(parts_, "verified", error);
  }
  return true;
}

void Call::abandon() {
  if (run_.has_value()) run_->end();
  lead_.give_up();
}

}  // namespace modcache::module
