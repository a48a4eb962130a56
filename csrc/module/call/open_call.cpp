// SPDX-License-Identifier: Apache-2.0
#include "module/call/open_call.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

namespace modcache::module {

tensor::InputSampler sampler_of(const CallParts& parts, tensor::Per per) {
  if (!parts.padding.has_value()) return {parts.input.tensors, per};
  return {parts.input.tensors, parts.input.padded_dims, *parts.padding};
}

OpenCall::OpenCall(CallParts parts, tensor::Per per)
    : parts_(std::move(parts)),
      input_(sampler_of(parts_, per)),
      session_(cache::Cache::instance().session()),
      mode_(cache::Cache::instance().mode()),
      context_(context_of(*session_, parts_, per)),
      grad_is_unknown_(is_grad_unknown(parts_)) {}

void OpenCall::abandon() {
  if (run_.has_value()) run_->end();
  lead_.give_up();
}

void OpenCall::count_run(std::int64_t misses) {
  if (grad_is_unknown_) note_graph_free(parts_);
  session_->note_run(parts_.scope, run_->run_us());
  auto& counters = cache::Cache::instance().counters();
  using cache::Stats;
  const std::array<Stats::Addition, 2> additions{
      Stats::addition(cache::Counter::kRunUs, run_->run_us()),
      Stats::addition(cache::Counter::kMisses, misses)};
  counters.add(parts_.scope, {additions.data(), additions.size()});
  if (misses == 0) return;
  was_miss_ = true;
  counters.latencies().run.observe(std::chrono::microseconds(run_->run_us()));
}

void OpenCall::note_end() const {
  if (run_.has_value() && !was_miss_) return;
  auto& latencies = cache::Cache::instance().counters().latencies();
  (run_.has_value() ? latencies.miss : latencies.hit)
      .observe(std::chrono::steady_clock::now() - started_);
}

bool OpenCall::has_other_weights(const RunFacts& facts) const {
  try {
    return judge_weights(parts_, facts, run_->run_us()).is_changed;
  } catch (const std::exception& error) {
    report_failure(parts_, "verified", error);
    return true;
  }
}

Comparison OpenCall::compare(const cache::Request& request, bool is_drawn,
                             const std::function<tensor::Flat()>& fresh) const {
  std::string difference;
  const Comparison comparison = compare_with_stored(parts_, *session_, request, fresh, &difference);
  if (is_drawn && comparison != Comparison::kNothingStored) {
    cache::Cache::instance().counters().add(parts_.scope, cache::Counter::kVerified);
    session_->note_verified(request, parts_.who(), difference, may_write(mode_));
  }
  return comparison;
}

cache::EntryPtr OpenCall::entry_of(std::shared_ptr<const cache::Value> value,
                                   std::string_view signature, const cache::InputSample& sample,
                                   std::int64_t run_us, const ConfirmationPtr& confirmation) const {
  return std::make_shared<const cache::Entry>(cache::Entry{std::move(value), std::string(signature),
                                                           run_us, now_us(), confirmation, sample});
}

}  // namespace modcache::module
