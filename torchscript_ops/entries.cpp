// SPDX-License-Identifier: Apache-2.0
//
// Entries by scope and key, without a module: lookup, store, clear, prefetch; the samples of
// datasets.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/cache.h"
#include "module/call/call_keys.h"
#include "module/call/current_cache.h"
#include "module/call/row_proof.h"
#include "module/call/samples.h"
#include "registration.h"
#include "tensor/input.h"
#include "tensor/placement.h"
#include "tensor/storable.h"
#include "tensor/whole_value.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using cache::Counter;
using cache::Form;

cache::Keys keys_of(Cache& cache, const std::string& scope, const std::string_view& key) {
  return module::sample_keys(cache.configuration(), scope,
                             std::span<const std::string_view>(&key, 1));
}

std::tuple<bool, at::Tensor> lookup(const std::string& scope, const std::string& key) {
  check_scope("cache::lookup", scope);
  check_key("cache::lookup", key);
  const cache::CachePtr cache = module::current_cache();
  const cache::Mode mode = cache->mode();
  if (!may_read(mode) || always_runs(mode)) return {false, at::empty({0})};
  const cache::Keys keys = keys_of(*cache, scope, key);
  cache::LookupOptions options;
  options.reads_values = true;
  // Only what a server has is stored: a lookup makes no directory.
  options.may_write = may_write(mode) && !keys.configuration->settings.remote.empty();
  const cache::Found found = cache->lookup(keys, options);
  if (!found.is_found(0)) {
    cache->counters().add(scope, Counter::kMisses);
    return {false, at::empty({0})};
  }
  cache->count_hits(keys, found, may_write(mode));
  const auto& value = static_cast<const tensor::WholeValue&>(*found.entry(0)->value);
  TORCH_CHECK(value.is_lone_tensor(), "cache::lookup: what is stored under scope '", scope,
              "' and key '", key, "' is a structured value, and no Tensor");
  return {true, value.hand_out_tensor(std::nullopt)};
}

at::Tensor store(const std::string& scope, const std::string& key, const at::Tensor& value) {
  check_scope("cache::store", scope);
  check_key("cache::store", key);
  Cache& cache = *module::current_cache();
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
  const cache::Keys keys = keys_of(cache, scope, key);
  const cache::EntryPtr entry = std::make_shared<const cache::Entry>(
      cache::Entry{tensor::WholeValue::copy_of({tensor::Node{}, {value}, {}}, std::nullopt,
                                               keys.configuration->settings.dtype),
                   /*signature=*/"", /*run_us=*/std::nullopt});
  cache.store(keys, std::span<const cache::EntryPtr>(&entry, 1), {/*replaces=*/true});
  return value;
}

bool contains(const std::string& scope, const std::string& key) {
  check_scope("cache::contains", scope);
  check_key("cache::contains", key);
  Cache& cache = *module::current_cache();
  return may_read(cache.mode()) && cache.contains(keys_of(cache, scope, key));
}

void flush() { module::current_cache()->flush(); }

std::int64_t clear_entries(const store::ClearFilter& filter, const std::string& tier) {
  const std::int64_t removed = module::current_cache()->clear(filter, parse_tier(tier));
  // The name of a scope that was cleared may get another meaning.
  if (filter.key_prefix.empty() && filter.older_than_us == 0) {
    module::forget_row_proofs(module::CallParts(), filter.scope);
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

constexpr const char* kPrefetch = "cache::prefetch";
constexpr const char* kPlace = "cache::place";

// How many of the distinct keys have an entry of `method`, one value for the key or one row, as the
// calling thread's autocast state addresses it. What only the directory has is brought into memory
// in the background. 0 where the mode may not read.
std::int64_t prefetch_keys(const std::string& scope, const module::CallKeys& keys,
                           const std::string& method) {
  check_scope(kPrefetch, scope);
  Cache& cache = *module::current_cache();
  if (keys.rows() == 0 || !may_read(cache.mode())) return 0;
  const cache::ConfigurationPtr configuration = cache.configuration();
  std::vector<bool> are_there(keys.size(), false);
  const auto bring = [&](Form form, const std::string& arguments) {
    cache::Keys asked(cache::make_context({configuration->settings.name_space, scope, method, form,
                                           arguments, tensor::arithmetic_state()}),
                      keys.distinct());
    asked.configuration = configuration;
    asked.form = form;
    std::vector<bool> are_of_form(keys.size(), false);
    cache.prefetch(asked, are_of_form);
    for (std::size_t i = 0; i < keys.size(); ++i) are_there[i] = are_there[i] || are_of_form[i];
  };
  bring(Form::kRow, "");
  bring(Form::kWhole, "");
  for (const auto part : {tensor::TruePart::kFirst, tensor::TruePart::kLast}) {
    bring(Form::kRow, tensor::arguments_of_padded("", part));  // rows of their own length
  }
  return std::count(are_there.begin(), are_there.end(), true);
}

std::int64_t prefetch(const std::string& scope, const std::vector<std::string>& keys,
                      const std::string& method) {
  std::vector<std::string_view> texts;
  texts.reserve(keys.size());
  for (const std::string& key : keys) {
    check_key(kPrefetch, key);
    texts.emplace_back(key);
  }
  return prefetch_keys(scope, module::CallKeys(texts), method);
}

std::int64_t prefetch_ids(const std::string& scope, const at::Tensor& ids,
                          const std::string& method) {
  return prefetch_keys(scope, checked_keys(kPrefetch, ids), method);
}

// Where memory holds the values of this scope (tensor/placement.h). Returns the place's name:
// "host" for what this machine does not have.
std::string place(const std::string& scope, const std::string& place) {
  check_scope(kPlace, scope);
  auto parsed = tensor::parse_place(place);
  check_ok(kPlace, parsed.status());
  module::current_cache()->place(scope, parsed.value());
  return tensor::place_name(parsed.value());
}

// When the look-up of samples began that are computed and stored then.
struct Samples : torch::CustomClassHolder {
  cache::Generation begun;
};
using SamplesPtr = c10::intrusive_ptr<Samples>;

using Keys = c10::List<std::string>;

// `class_name` is who asks, for messages.
module::SampleNames names_of(const std::string& scope, const std::string& class_name) {
  check_scope(class_name.c_str(), scope);
  return {scope, class_name};
}

module::CallKeys distinct_keys(const Keys& keys, const std::string& class_name) {
  module::CallKeys checked = checked_keys(class_name.c_str(), at::IValue(keys));
  TORCH_CHECK(checked.repeated().empty(), class_name, ": a key comes twice");
  return checked;
}

// -> (is_off, missing, values, begun): the places of keys that are not there, a value or None for
// each key, and what keep() takes.
std::tuple<bool, c10::List<std::int64_t>, at::IValue, SamplesPtr> look_up(
    const std::string& scope, const std::string& class_name, const Keys& keys) {
  const module::CallKeys checked = distinct_keys(keys, class_name);
  module::SamplesFound found =
      module::look_up_samples(names_of(scope, class_name), checked.distinct());
  c10::List<std::int64_t> missing;
  std::vector<at::IValue> values(found.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto& value = found.values[i]) {
      values[i] = tensor::rebuild_tagged(value->root, value->tensors);
    } else {
      missing.push_back(static_cast<std::int64_t>(i));
    }
  }
  auto begun = c10::make_intrusive<Samples>();
  begun->begun = std::move(found.begun);
  return {found.is_off, std::move(missing), c10::ivalue::Tuple::create(std::move(values)),
          std::move(begun)};
}

void keep(const SamplesPtr& begun, const std::string& scope, const std::string& class_name,
          const Keys& keys, const at::IValue& values, const std::vector<std::int64_t>& run_us) {
  const module::CallKeys checked = distinct_keys(keys, class_name);
  std::vector<tensor::Flat> flat;
  for (const at::IValue& value : values.toTupleRef().elements()) {
    flat.push_back(tensor::flatten_tagged(value));
  }
  module::store_samples(names_of(scope, class_name), begun->begun, checked.distinct(), flat,
                        run_us);
}

}  // namespace

void register_entries(torch::Library& m) {
  define(m, "lookup(str scope, str key) -> (bool, Tensor)", &lookup);
  define(m, "store(str scope, str key, Tensor value) -> Tensor", &store);
  define(m, "contains(str scope, str key) -> bool", &contains);
  define(m, "flush() -> ()", &flush);
  define(m, "clear(str scope=\"\", *, str prefix=\"\", str tier=\"all\") -> int", &clear);
  // An overload, so that a host that calls `clear` boxed passes the three arguments of its
  // contract.
  define(m,
         "clear.older_than(str scope=\"\", *, str prefix=\"\", str tier=\"all\","
         " float older_than_s) -> int",
         &clear_older_than);
  define(m, "prefetch(str scope, str[] keys, *, str method=\"forward\") -> int", &prefetch);
  define(m, "prefetch.ids(str scope, Tensor ids, *, str method=\"forward\") -> int", &prefetch_ids);
  define(m, "place(str scope, str place) -> str", &place);
  m.class_<Samples>("Samples").def_static("look_up", &look_up).def_static("keep", &keep);
}

}  // namespace modcache::ops
