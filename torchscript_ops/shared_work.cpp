// SPDX-License-Identifier: Apache-2.0
//
// What fill(share=True) of the Python package asks: parts of a work that machines share.
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "cache/cache.h"
#include "cache/shared_fill.h"
#include "registration.h"

namespace modcache::ops {
namespace {

using cache::Cache;
using cache::RemoteTier;

constexpr const char* kFill = "modcache.fill";

struct SharedWork : torch::CustomClassHolder {};

std::shared_ptr<RemoteTier> remote() {
  const auto remote = Cache::instance().remote();
  TORCH_CHECK_VALUE(
      remote != nullptr, kFill,
      ": share=True needs a server that the machines share; "
      "modcache.configure(remote=\"redis://host:6379/0\") or MODCACHE_REMOTE names it");
  return remote;
}

constexpr std::int64_t kUnasked = -1;  // the server cannot be asked now

std::int64_t number_of(remote::Claims::Holder holder) {
  switch (holder) {
    case remote::Claims::Holder::kOthers: return 0;
    case remote::Claims::Holder::kMine: return 1;
    case remote::Claims::Holder::kDone: return 2;
    case remote::Claims::Holder::kNobody: break;
  }
  return 3;
}

// Raises what is the caller's mistake. Anything else means that the server cannot be asked now.
std::int64_t unasked(const Status& failure) {
  if (failure.code() == StatusCode::kInvalidArgument) check_ok(kFill, failure);
  return kUnasked;
}

// The answer; empty: unasked.
template <typename T>
T or_empty(const Result<T>& answer) {
  if (answer.is_ok()) return answer.value();
  unasked(answer.status());
  return {};
}

// Text that those who fill the same share while they do (claims.h). Empty: unasked.
std::string join(const std::string& work, const std::string& proposed, std::int64_t ttl_ms) {
  return or_empty(remote()->join_work(work, proposed, ttl_ms));
}

// Who has each part: see number_of(). Empty: unasked.
std::vector<std::int64_t> look(const std::vector<std::string>& parts) {
  std::vector<std::int64_t> numbers;
  for (const auto holder : or_empty(remote()->look_at_parts(parts))) {
    numbers.push_back(number_of(holder));
  }
  return numbers;
}

std::int64_t take(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  const auto holder = remote()->take_part(part, owner, ttl_ms);
  return holder.is_ok() ? number_of(holder.value()) : unasked(holder.status());
}

// 1; 0: it is another's or nobody's.
std::int64_t renew(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  const auto is_renewed = remote()->renew_part(part, owner, ttl_ms);
  return is_renewed.is_ok() ? std::int64_t{is_renewed.value()} : unasked(is_renewed.status());
}

void give_back(const std::string& part, const std::string& owner) {
  (void)remote()->give_part_back(part, owner);
}

// 1: the server has all its results; 0: it did not take some, so that others may take the part.
std::int64_t end(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  const auto is_done = remote()->end_part(part, owner, ttl_ms);
  return is_done.is_ok() ? std::int64_t{is_done.value()} : unasked(is_done.status());
}

// Empty: unasked.
std::string generation(const std::string& scope) {
  return or_empty(remote()->generation_of(scope));
}

// Has the hits of the calling thread given to the server as well (cache/shared_fill.h). Returns
// what it was.
bool share_hits(bool shares_hits) { return cache::share_hits_here(shares_hits); }

}  // namespace

void register_shared_work(torch::Library& m) {
  m.class_<SharedWork>("SharedWork")
      .def_static("join", &join)
      .def_static("look", &look)
      .def_static("take", &take)
      .def_static("renew", &renew)
      .def_static("give_back", &give_back)
      .def_static("end", &end)
      .def_static("generation", &generation)
      .def_static("share_hits", &share_hits);
}

}  // namespace modcache::ops
