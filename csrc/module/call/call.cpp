// SPDX-License-Identifier: Apache-2.0
#include "module/call/call.h"

#include <exception>
#include <utility>

#include "base/log.h"

namespace modcache::module {

using cache::Counter;

Call::Call(CallParts parts, std::string key)
    : OpenCall(std::move(parts), tensor::Per::kCall),
      key_(std::move(key)),
      replaces_(always_runs(mode_)) {}

std::shared_ptr<const tensor::WholeValue> Call::lookup() {
  auto found = find();
  if (found == nullptr && !is_bypassed_) take_sample();
  return found;
}

std::shared_ptr<const tensor::WholeValue> Call::find() {
  if (parts_.scope.empty() || !may_read(mode_) || always_runs(mode_)) return nullptr;
  is_bypassed_ = session_->bypasses(parts_.scope, 1);
  if (is_bypassed_) return nullptr;
  if (grad_is_unknown_) return nullptr;
  cache::Session::Missed missed;
  const cache::EntryPtr entry = session_->lookup(request(), may_write(mode_), lead_, &missed);
  replaces_ = missed.is_conflict;
  is_drawn_ = missed.is_verified;
  if (entry == nullptr) return nullptr;
  note_end();
  return std::static_pointer_cast<const tensor::WholeValue>(entry->value);
}

void Call::take_sample() {
  if (!sample_.has_value() && may_ever_store()) {
    sample_ = session_->sample_to_keep(input_, /*row=*/0);
  }
}

void Call::reject_hit() {
  take_sample();
  replaces_ = true;
  cache::Cache::instance().counters().add(parts_.scope, Counter::kKeyConflicts);
  log_once(LogLevel::kWarning, "other-type:" + parts_.who(),
           "a stored result of " + parts_.who() +
               " has another type than the method declares: it is computed anew, and replaced");
}

void Call::begin_run(ModuleRun::Time started) {
  take_sample();
  start_run(started);
}

void Call::finish_run(const tensor::Flat& result, const RunFacts& facts) {
  // Releases the lead also when this throws: whoever keeps the exception may keep this call, too.
  cache::SingleFlight::Lead lead = std::move(lead_);
  run_->end();
  if (is_bypassed_) return;
  if (!run_->may_keep(parts_, *session_, result, facts, 1, outcome_)) {
    lead.kept_nothing();
    return;
  }
  const bool compares = is_verified() || (is_drawn_ && !has_other_weights(facts));
  const Comparison comparison =
      compares ? compare(request(), is_drawn_, [&] { return result; }) : Comparison::kNothingStored;
  if (is_drawn_ && comparison == Comparison::kDifferent) replaces_ = true;
  const bool stores = may_store() && !(is_drawn_ && comparison == Comparison::kSame);
  const bool is_refused = stores && !replaces_ && !session_->admits(request(), lead);
  count_run(comparison == Comparison::kNothingStored ? 1 : 0);
  outcome_.has_stored = stores && !is_refused && keep(result, facts);
  if (outcome_.has_stored) {
    lead.stored();
  } else if (!is_refused) {
    lead.kept_nothing();  // else a thread that began to wait just now runs the key again, and
                          // stores
  }
  note_end();
}

// The model has its result, and a later failure of the cache must not take it away.
bool Call::keep(const tensor::Flat& result, const RunFacts& facts) {
  try {
    const auto weights = judge_weights(parts_, facts, run_->run_us());
    if (weights.is_changed || is_stored_already(request())) return false;
    auto value =
        tensor::WholeValue::copy_of(result, parts_.input.device, session_->settings().dtype);
    return session_->store(
        request(),
        entry_of(std::move(value), parts_.input.signature, sample_.value_or(cache::InputSample()),
                 run_->run_us(), weights.confirmation),
        replaces_);
  } catch (const std::exception& error) {
    report_failure(parts_, "kept", error);
    return false;
  }
}

}  // namespace modcache::module
