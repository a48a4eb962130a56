// SPDX-License-Identifier: Apache-2.0
#include "module/call/observation.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <unordered_map>

namespace modcache::module {

struct Observation::Watch {
  std::shared_ptr<Watch> outer;  // the enclosing one of the same thread
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  std::uint64_t thread = 0;
  std::uint64_t strays_before = 0;
  std::atomic<bool> has_ended{false};
  std::string impure_because;
};

namespace {

thread_local std::shared_ptr<Observation::Watch> innermost;

// Counts impure operators of threads that inherited a callback but whose observation is unknown
// (TorchScript's fork). Every observation that is open at that time has to assume they are its own.
std::atomic<std::uint64_t> strays{0};

std::atomic<std::uint64_t> next_thread{1};
std::uint64_t this_thread() {
  thread_local const std::uint64_t number = next_thread.fetch_add(1);
  return number;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// The results of collectives depend on other processes.
bool is_collective(std::string_view name) {
  return starts_with(name, "c10d::") || starts_with(name, "_c10d_functional::");
}

// Returns whether an operator of this name may draw random numbers, by torch's own tag.
bool may_draw(const at::RecordFunction& function) {
  thread_local std::unordered_map<std::string, bool> known;
  const auto found = known.find(function.name());
  if (found != known.end()) return found->second;
  const auto name = function.operator_name();
  bool draws = starts_with(function.name(), "prims::inductor_");
  if (name.has_value()) {
    const auto handle = c10::Dispatcher::singleton().findOp(*name);
    // Our operators have that tag because their answers change, but their results are reproducible.
    draws |= handle.has_value() && handle->hasTag(at::Tag::nondeterministic_seeded) &&
             !starts_with(function.name(), "cache::");
  }
  known.emplace(function.name(), draws);
  return draws;
}

// Returns whether the arguments show that nothing is drawn: dropout and rrelu draw nothing in
// evaluation, and attention draws nothing without its dropout.
bool arguments_forbid_drawing(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema.has_value()) return false;
  // TorchScript's interpreter passes its whole stack; the arguments are the last values on it.
  const auto stack = function.inputs();
  const std::size_t count = schema->arguments().size();
  if (stack.size() < count) return false;
  const auto inputs = stack.slice(stack.size() - count);
  const bool is_dropout = std::string_view(function.name()).find("dropout") != std::string::npos;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = schema->arguments()[i].name();
    const at::IValue& value = inputs[i];
    if ((name == "train" || name == "training") && value.isBool() && !value.toBool()) return true;
    const bool is_probability =
        name == "dropout_p" || name == "dropout" || (is_dropout && name == "p");
    if (is_probability && value.isDouble() && value.toDouble() == 0.0) return true;
  }
  return false;
}

// A watch that ended in another thread could not remove its callback there, so it is removed here.
void forget_ended_watches() {
  while (innermost != nullptr && innermost->has_ended) {
    at::removeCallback(innermost->handle);
    innermost = innermost->outer;
  }
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  const bool with_others = is_collective(function.name());
  if (!with_others && (!may_draw(function) || arguments_forbid_drawing(function))) return nullptr;
  if (innermost == nullptr) strays.fetch_add(1);
  for (auto watch = innermost; watch != nullptr; watch = watch->outer) {
    if (!watch->impure_because.empty() || watch->has_ended) continue;
    watch->impure_because =
        with_others ? "another process took part through " : "random numbers were drawn by ";
    watch->impure_because += function.name();
  }
  return nullptr;
}

}  // namespace

Observation::Observation() : watch_(std::make_shared<Watch>()) {
  forget_ended_watches();
  watch_->outer = innermost;
  watch_->thread = this_thread();
  watch_->strays_before = strays.load();
  static const at::RecordFunctionCallback callback =
      at::RecordFunctionCallback(on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION});
  watch_->handle = at::addThreadLocalCallback(callback);
  innermost = watch_;
}

void Observation::end() {
  if (watch_->has_ended.exchange(true)) return;
  if (watch_->thread != this_thread()) {
    watch_->impure_because = "the run ended in another thread than the one that began it";
    return;
  }
  forget_ended_watches();
  if (watch_->impure_because.empty() && strays.load() != watch_->strays_before) {
    watch_->impure_because = "random numbers were drawn by a task that the run forked";
  }
}

const std::string& Observation::impure_because() const { return watch_->impure_because; }

}  // namespace modcache::module
