// SPDX-License-Identifier: Apache-2.0
//
// What Python's explain() asks, and does not ask of a TorchScript module itself (scripted.cpp).
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "cache/cache.h"
#include "module/call/current_cache.h"
#include "module/call/dry_run.h"
#include "module/call/manifest.h"
#include "registration.h"
#include "tensor/rows.h"

namespace modcache::ops {
namespace {

struct Explain : torch::CustomClassHolder {};

c10::List<std::string> scopes_of_class(const std::string& class_name, const std::string& method) {
  return c10::List<std::string>(
      module::scopes_of_class(*module::current_cache(), class_name, method));
}

module::DryRun dry_run_of(module::CallParts parts, const at::IValue& input, const at::IValue& key,
                          std::uint64_t params_grad_pattern) {
  if (key.isString()) {
    check_key("modcache.explain", key.toStringRef());
    return module::dry_run(std::move(parts), {std::string_view(key.toStringRef())}, {}, input,
                           params_grad_pattern);
  }
  const module::CallKeys keys = checked_keys("modcache.explain", key);
  tensor::check_rows(input, static_cast<std::int64_t>(keys.rows()));
  std::vector<std::size_t> rows;
  rows.reserve(keys.distinct().size());
  for (std::size_t i = 0; i < keys.distinct().size(); ++i) {
    rows.push_back(static_cast<std::size_t>(keys.first_row(i)));
  }
  return module::dry_run(std::move(parts), keys.distinct(), rows, input, params_grad_pattern);
}

// Why the input is not cacheable, and whether the gradient is unknown; and of each key the
// signature of its input, the place of its entry (0: nowhere, 1: memory, 2: disk, negative: for
// another input), the entry's signature, and its bytes, run_us and stored_at_us.
using EntryFacts = std::tuple<std::string, bool, c10::List<std::string>, c10::List<std::int64_t>,
                              c10::List<std::string>, c10::List<std::int64_t>>;

// `key`: one, or one per row.
// NOLINTNEXTLINE(readability-function-size): the arguments are those of the schema
EntryFacts dry_run(const std::string& scope, const std::string& method, const at::IValue& input,
                   const at::IValue& key, std::int64_t params_grad_pattern,
                   const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& lengths,
                   std::int64_t longest, double pad_value) {
  module::CallParts parts;
  parts.scope = scope;
  parts.method = method;
  if (!key.isString()) {
    const std::size_t rows = checked_keys("modcache.explain", key).rows();
    parts.padding = checked_padding("modcache.explain", rows, {mask, lengths, longest, pad_value});
  }
  const module::DryRun found =
      dry_run_of(std::move(parts), input, key, static_cast<std::uint64_t>(params_grad_pattern));
  c10::List<std::int64_t> places;
  c10::List<std::string> signatures;
  c10::List<std::int64_t> facts;
  for (const auto& entry : found.entries) {
    const cache::EntryInfo seen = entry.value_or(cache::EntryInfo{});
    const int tier = seen.is_in_memory ? 1 : seen.is_remote ? 3 : 2;
    places.push_back(!entry.has_value() ? 0 : seen.matches ? tier : -tier);
    signatures.push_back(seen.signature);
    for (const std::int64_t fact : {seen.size_bytes, seen.run_us, seen.stored_at_us}) {
      facts.push_back(fact);
    }
  }
  return {found.why_not_cacheable, found.grad_is_unknown, c10::List<std::string>(found.signatures),
          std::move(places),       std::move(signatures), std::move(facts)};
}

// Returns whether verify_share has switched the scope off in this process.
bool is_switched_off(const std::string& scope) {
  return module::current_cache()->is_switched_off(scope);
}

}  // namespace

void register_explain(torch::Library& m) {
  m.class_<Explain>("Explain")
      .def_static("dry_run", &dry_run)
      .def_static("is_switched_off", &is_switched_off)
      .def_static("manifest",
                  [](const std::string& scope) {
                    return module::manifest_of(*module::current_cache(), scope);
                  })
      .def_static("scopes_of_class", &scopes_of_class);
}

}  // namespace modcache::ops
