// SPDX-License-Identifier: Apache-2.0
//
// Values before they are asked for: brought into memory, and where in memory they lie.
#include <algorithm>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "cache/cache.h"
#include "module/call/batch_keys.h"
#include "registration.h"
#include "tensor/input.h"
#include "tensor/placement.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using cache::Form;

constexpr const char* kPrefetch = "cache::prefetch";
constexpr const char* kPlace = "cache::place";

// How many of the distinct keys have an entry of `method`, one value for the key or one row, as the
// calling thread's autocast state addresses it. What only the directory has is brought into memory
// in the background. 0 where the mode may not read.
std::int64_t prefetch_keys(const std::string& scope, const module::BatchKeys& keys,
                           const std::string& method) {
  check_scope(kPrefetch, scope);
  Cache& cache = Cache::instance();
  if (keys.rows() == 0 || !may_read(cache.mode())) return 0;
  const auto session = cache.session();
  std::vector<bool> is_there(keys.distinct().size(), false);
  const auto bring = [&](Form form, const std::string& arguments) {
    const auto context = cache::make_context({session->settings().name_space, scope, method, form,
                                              arguments, tensor::arithmetic_state()});
    session->prefetch(context, form, keys.distinct(), is_there);
  };
  bring(Form::kRow, "");
  bring(Form::kWhole, "");
  for (const auto part : {tensor::TruePart::kFirst, tensor::TruePart::kLast}) {
    bring(Form::kRow, tensor::arguments_of_padded("", part));  // rows of their own length
  }
  return std::count(is_there.begin(), is_there.end(), true);
}

std::int64_t prefetch(const std::string& scope, const std::vector<std::string>& keys,
                      const std::string& method) {
  std::vector<std::string_view> texts;
  texts.reserve(keys.size());
  for (const std::string& key : keys) {
    check_key(kPrefetch, key);
    texts.emplace_back(key);
  }
  return prefetch_keys(scope, module::BatchKeys(texts), method);
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
  Cache::instance().place(scope, parsed.value());
  return tensor::place_name(parsed.value());
}

}  // namespace

void register_feeding(torch::Library& m) {
  define(m, "prefetch(str scope, str[] keys, *, str method=\"forward\") -> int", &prefetch);
  define(m, "prefetch.ids(str scope, Tensor ids, *, str method=\"forward\") -> int", &prefetch_ids);
  define(m, "place(str scope, str place) -> str", &place);
}

}  // namespace modcache::ops
