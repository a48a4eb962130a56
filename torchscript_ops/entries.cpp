// SPDX-License-Identifier: Apache-2.0
//
// Entries that a caller reads and writes itself, and removing entries. What the mode allows: there
// is nothing to run here, and so nothing to compare with or to replace. Under `refresh` and
// `verify` lookup finds nothing and counts nothing, as under `off`; store stores where the mode may
// write, contains answers where it may read.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "arguments.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/cache.h"
#include "module/call/row_proof.h"
#include "module/call/samples.h"
#include "registration.h"
#include "tensor/input.h"
#include "tensor/storable.h"
#include "tensor/whole_value.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using cache::Counter;

std::tuple<bool, at::Tensor> lookup(const std::string& scope, const std::string& key) {
  check_scope("cache::lookup", scope);
  check_key("cache::lookup", key);
  Cache& cache = Cache::instance();
  const cache::Mode mode = cache.mode();
  if (!may_read(mode) || always_runs(mode)) return {false, at::empty({0})};
  const auto session = cache.session();
  const cache::Request request{module::sample_context(*session, scope), key, {}};
  // Only what a server has is kept: a look-up makes no directory.
  const bool keeps = may_write(mode) && !session->settings().remote.empty();
  const auto entry = session->lookup_at_once(request, keeps);
  if (entry == nullptr) {
    cache.counters().add(scope, Counter::kMisses);
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
    cache.counters().add(scope, Counter::kBypassedGrad);
    log_once(LogLevel::kWarning, "store-grad:" + scope,
             "cache::store: a value that requires grad is not stored; detach() it");
    return value;
  }
  if (const char* why = tensor::why_not_storable(value)) {
    cache.counters().add(scope, Counter::kBypassedType);
    log_once(LogLevel::kWarning, "store-type:" + scope,
             std::string("cache::store: a value is not stored: it is ") + why);
    return value;
  }
  const auto session = cache.session();
  session->store({module::sample_context(*session, scope), key, {}},
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
  return session->contains({module::sample_context(*session, scope), key, {}});
}

void flush() { Cache::instance().flush(); }

std::int64_t clear_entries(const store::ClearFilter& filter, const std::string& tier) {
  const std::int64_t removed = Cache::instance().clear(filter, parse_tier(tier));
  // The name of a scope that was cleared may get another meaning.
  if (filter.key_prefix.empty() && filter.older_than_us == 0) {
    module::forget_row_proofs(*Cache::instance().session(), filter.scope);
  }
  return removed;
}

std::int64_t clear(const std::string& scope, const std::string& prefix, const std::string& tier) {
  return clear_entries({scope, prefix}, tier);
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
  return clear_entries(filter, tier);
}

}  // namespace

void register_entries(torch::Library& m) {
  define(m, "lookup(str scope, str key) -> (bool, Tensor)", &lookup);
  define(m, "store(str scope, str key, Tensor value) -> Tensor", &store);
  define(m, "contains(str scope, str key) -> bool", &contains);
  define(m, "flush() -> ()", &flush);
  define(m, "clear(str scope=\"\", *, str prefix=\"\", str tier=\"all\") -> int", &clear);
  // An overload: hosts that were built before call the other with three arguments, boxed.
  define(m,
         "clear.older_than(str scope=\"\", *, str prefix=\"\", str tier=\"all\","
         " float older_than_s) -> int",
         &clear_older_than);
}

}  // namespace modcache::ops
