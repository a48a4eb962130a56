// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/lowered.h"

#include <utility>

#include "tensor/rows.h"
#include "tensor/tree.h"

namespace modcache::module {

std::optional<CallParts> LoweredCallBase::prepare(tensor::Per per, std::int64_t rows) const {
  if (is_bypassed_by_mode(rows)) return std::nullopt;
  CallParts parts;
  parts.class_name = constants_.class_name;
  parts.method = constants_.method;
  if (!read_input(parts, tensor::summarize_input(input_, per), rows)) return std::nullopt;
  parts.grad_pattern = grad_pattern(constants_.identity.grad_pattern, parts.input);
  parts.scope = constants_.scope.empty() ? constants_.identity.fingerprint : constants_.scope;
  if (parts.scope.empty()) {
    refuse_unidentified(parts, rows, "an attribute of it cannot be hashed");
    return std::nullopt;
  }
  return parts;
}

void LoweredCallBase::note_begin(const std::string& fingerprint, const at::IValue& replaceable) {
  if (constants_.scope.empty() && weights_ == nullptr) weights_ = last_identified(fingerprint);
  is_another_ = is_another_ || fingerprint != constants_.identity.fingerprint;
  if (!kept_.has_value()) kept_ = tensors_of(replaceable);
}

RunFacts LoweredCallBase::facts_of(const tensor::Flat& result, const States& states) {
  RunFacts facts;
  facts.weights = weights_;
  if (!first_state_.has_value()) first_state_ = states.before;
  if (is_another_) {
    facts.impure_because = "weights of " + constants_.class_name +
                           " changed while the call waited, or since the model was frozen";
  } else if (*first_state_ != states.after) {
    facts.impure_because = "an attribute of " + constants_.class_name + " changed during the run";
  }
  if (result.requires_grad()) {
    facts.is_scripted = true;
    facts.requiring_grad = constants_.identity.requiring_grad;
    distrust(constants_.identity.fingerprint);
  }
  return facts;
}

LoweredCall::LoweredCall(LoweredConstants constants, at::IValue input, const std::string& key)
    : LoweredCallBase(std::move(constants), std::move(input)) {
  auto parts = prepare(tensor::Per::kCall, 1);
  if (!parts.has_value()) return;
  call_ = std::make_unique<Call>(*std::move(parts), key);
  const auto hit = call_->lookup();
  if (call_->is_bypassed()) call_.reset();
  if (hit == nullptr) return;
  hit_ = constants_.declared.value_of(*hit, call_->parts().input.device);
  if (!hit_.has_value()) call_->reject_hit();
}

void LoweredCall::begin_run(const std::string& fingerprint, const at::IValue& replaceable) {
  note_begin(fingerprint, replaceable);
  if (call_ != nullptr) call_->begin_run();
}

void LoweredCall::finish(const at::IValue& result, const States& states) {
  check_wanted(result);
  if (call_ == nullptr) return;
  const tensor::Flat flat = tensor::flatten(result);
  call_->finish_run(flat, facts_of(flat, states));
}

LoweredRowsCall::LoweredRowsCall(LoweredConstants constants, at::IValue input, BatchKeys keys)
    : LoweredCallBase(std::move(constants), std::move(input)) {
  const auto count = static_cast<std::int64_t>(keys.rows());
  tensor::check_rows(input_, count);
  if (count == 0) return;
  auto parts = prepare(tensor::Per::kRow, count);
  if (!parts.has_value()) return;
  call_ = std::make_unique<RowsCall>(*std::move(parts), std::move(keys));
  call_->check_in_same_shape();  // the graph cannot catch an exception
  go_on();
}

at::IValue LoweredRowsCall::begin_run(const std::string& fingerprint,
                                      const at::IValue& replaceable) {
  note_begin(fingerprint, replaceable);
  if (call_ == nullptr) return input_;
  if (check_.has_value()) return check_input(input_, *check_);
  at::IValue rows =
      call_->is_whole_input(running_) ? input_ : tensor::select_rows(input_, running_);
  call_->begin_run();
  return rows;
}

void LoweredRowsCall::finish_run(const at::IValue& result, const States& states) {
  check_wanted(result);
  if (call_ == nullptr) {
    must_run_ = false;
    is_last_run_ = true;
    return;
  }
  tensor::Flat flat = tensor::flatten(result);
  if (check_.has_value()) {
    call_->finish_check(flat);
    check_ = call_->next_check();
    if (!check_.has_value()) go_on();
    return;
  }
  const RunFacts facts = facts_of(flat, states);
  call_->finish_run(std::move(flat), facts);
  check_ = call_->next_check();
  is_last_run_ = !check_.has_value() && call_->is_whole_input(running_);
  if (check_.has_value()) return;  // must_run_ is still set
  go_on();
}

void LoweredRowsCall::go_on() {
  while (true) {
    if (auto rows = call_->next_rows()) {
      if (call_->is_bypassed()) {
        call_.reset();  // must_run_ is set from the beginning
        return;
      }
      must_run_ = true;
      running_ = *std::move(rows);
      return;
    }
    must_run_ = false;
    if (is_last_run_) return;
    rows_ = constants_.declared.rows_of(*call_);
    if (rows_.has_value()) return;
    call_->reject_hits();
  }
}

}  // namespace modcache::module
