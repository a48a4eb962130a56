// SPDX-License-Identifier: Apache-2.0
#include "operators.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "arguments.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/cache.h"
#include "module/scripted.h"
#include "tensor/content_key.h"
#include "tensor/input.h"
#include "tensor/storable.h"
#include "tensor/whole_value.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using cache::Counter;
using torch::jit::Stack;

cache::ContextPtr whole_forward_context(const cache::Session& session, const std::string& scope) {
  return cache::make_context({session.settings().name_space, scope, "forward", cache::Form::kWhole,
                              "", tensor::arithmetic_state()});
}

c10::List<std::string> list_of(const std::vector<std::string>& texts) {
  return c10::List<std::string>(c10::ArrayRef<std::string>(texts));
}

template <typename Keys>
Keys value_or_throw(const char* op, Result<Keys> keys) {
  check_ok(op, keys.status());
  return std::move(keys).value();
}

// The arguments of an operator that was given an input taken apart.
tensor::TakenApart parts_of(const Stack& stack) {
  const auto arguments = torch::jit::last(stack, 2);
  return {arguments[0].toStringRef(), arguments[1].toListRef()};
}

}  // namespace

void fingerprint(const c10::OperatorHandle&, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 2);
  std::string text = module::fingerprint(arguments[0], arguments[1].toStringRef());
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, std::move(text));
}

void refresh_fingerprint(const c10::OperatorHandle&, Stack* stack) {
  std::string text = module::refresh_fingerprint(torch::jit::last(*stack, 1)[0]);
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, std::move(text));
}

void content_key(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_key";
  std::string key = value_or_throw(kOp, tensor::content_key(torch::jit::last(*stack, 1)[0]));
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, std::move(key));
}

void content_keys(const c10::OperatorHandle&, Stack* stack) {
  constexpr const char* kOp = "cache::content_keys";
  auto keys = value_or_throw(kOp, tensor::content_keys(torch::jit::last(*stack, 1)[0]));
  torch::jit::drop(*stack, 1);
  torch::jit::push(*stack, list_of(keys));
}

void content_key_of_parts(const c10::OperatorHandle&, Stack* stack) {
  std::string key = value_or_throw("content_key", tensor::content_key(parts_of(*stack)));
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, std::move(key));
}

void content_keys_of_parts(const c10::OperatorHandle&, Stack* stack) {
  auto keys = value_or_throw("content_keys", tensor::content_keys(parts_of(*stack)));
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, list_of(keys));
}

std::tuple<bool, at::Tensor> lookup(const std::string& scope, const std::string& key) {
  check_scope("cache::lookup", scope);
  check_key("cache::lookup", key);
  Cache& cache = Cache::instance();
  const cache::Mode mode = cache.mode();
  if (!may_read(mode) || always_runs(mode)) return {false, at::empty({0})};
  const auto session = cache.session();
  const cache::Request request{whole_forward_context(*session, scope), key, {}};
  cache::SingleFlight::Lead nobody_waits;
  const auto entry = session->lookup(request, /*may_write=*/false, nobody_waits);
  if (entry == nullptr) {
    cache.counters().add(Counter::kMisses);
    return {false, at::empty({0})};
  }
  const auto& value = static_cast<const tensor::WholeValue&>(*entry->value);
  TORCH_CHECK(value.is_lone_tensor(), "cache::lookup: what is stored under scope '", scope,
              "' and key '", key, "' is a structured value, and no Tensor");
  return {true, value.hand_out_tensor(std::nullopt)};
}

at::Tensor store(const std::string& scope, const std::string& key, const at::Tensor& value) {
  check_scope("cache::store", scope);
  check_key("cache::store", key);
  Cache& cache = Cache::instance();
  if (!may_write(cache.mode())) return value;
  if (value.requires_grad()) {
    cache.counters().add(Counter::kBypassedGrad);
    log_once(LogLevel::kWarning, "store-grad:" + scope,
             "cache::store: a value that requires grad is not stored; detach() it");
    return value;
  }
  if (const char* why = tensor::why_not_storable(value)) {
    cache.counters().add(Counter::kBypassedType);
    log_once(LogLevel::kWarning, "store-type:" + scope,
             std::string("cache::store: a value is not stored: it is ") + why);
    return value;
  }
  const auto session = cache.session();
  session->store({whole_forward_context(*session, scope), key, {}},
                 std::make_shared<const cache::Entry>(cache::Entry{
                     tensor::WholeValue::copy_of({tensor::Node{}, {value}, {}}, std::nullopt,
                                                 session->settings().dtype),
                     /*signature=*/"", /*run_us=*/std::nullopt}),
                 /*replaces=*/true);
  return value;
}

bool contains(const std::string& scope, const std::string& key) {
  check_scope("cache::contains", scope);
  check_key("cache::contains", key);
  Cache& cache = Cache::instance();
  if (!may_read(cache.mode())) return false;
  const auto session = cache.session();
  return session->contains({whole_forward_context(*session, scope), key, {}});
}

void configure(const Options& options) {
  cache::Options given;
  for (const auto& option : options) given.emplace(option.key(), option.value());
  check_ok("cache::configure", Cache::instance().configure(given));
}

Options settings() {
  Options shown;
  for (const auto& [name, value] : Cache::instance().settings()) shown.insert(name, value);
  return shown;
}

void set_mode(const std::string& mode) {
  auto parsed = cache::parse_mode(mode);
  check_ok("cache::set_mode", parsed.status());
  Cache::instance().set_mode(parsed.value());
}

std::int64_t enter_mode(const std::string& mode) {
  auto parsed = cache::parse_mode(mode);
  check_ok("modcache.mode", parsed.status());
  return static_cast<std::int64_t>(cache::enter_mode(parsed.value()));
}

void leave_mode(std::int64_t previous) {
  const auto mode = cache::mode_from_number(previous);
  TORCH_CHECK_VALUE(mode.has_value(), "cache::_leave_mode: previous is ", previous,
                    ", but must be what cache::_enter_mode returned");
  cache::leave_mode(*mode);
}

void follow_modes(const std::vector<std::string>& modes) {
  std::vector<cache::Mode> parsed;
  for (const std::string& mode : modes) {
    auto known = cache::parse_mode(mode);
    check_ok("modcache.mode", known.status());
    parsed.push_back(known.value());
  }
  cache::follow_modes(parsed);
}

std::string mode() { return std::string(cache::mode_name(Cache::instance().mode())); }

std::tuple<std::string, std::string, std::string> mode_levels() {
  Cache& cache = Cache::instance();
  const cache::Mode process = cache.process_mode();
  const cache::Mode thread = cache::thread_mode();
  const bool is_off = combine(process, thread) == cache::Mode::kOff;
  const cache::Mode directory = is_off ? cache::Mode::kOn : cache.directory_mode();
  return {std::string(mode_name(process)), std::string(mode_name(thread)),
          std::string(mode_name(directory))};
}

Counts stats() {
  Counts counts;
  for (const auto& [name, count] : Cache::instance().stats()) counts.insert(name, count);
  return counts;
}

void reset_stats() { Cache::instance().reset_stats(); }

void flush() { Cache::instance().flush(); }

std::int64_t clear(const std::string& scope, const std::string& prefix, const std::string& tier) {
  return Cache::instance().clear({scope, prefix}, parse_tier(tier));
}

std::int64_t clear_older_than(const std::string& scope, const std::string& prefix,
                              const std::string& tier, double older_than_s) {
  store::ClearFilter filter{scope, prefix};
  TORCH_CHECK_VALUE(older_than_s >= 0, "cache::clear: older_than_s is ", older_than_s,
                    ", but must be a number of seconds, not negative (0: of any age)");
  // Whatever is older than the clock itself is older than nothing.
  if (older_than_s > 0) {
    const double before_us = static_cast<double>(now_us()) - older_than_s * 1e6;
    filter.older_than_us = before_us > 1 ? static_cast<std::int64_t>(before_us) : 1;
  }
  return Cache::instance().clear(filter, parse_tier(tier));
}

}  // namespace modcache::ops
