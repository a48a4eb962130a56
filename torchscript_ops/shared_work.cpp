// SPDX-License-Identifier: Apache-2.0
//
// What fill(share=True) of the Python package asks: parts of a work that machines share.
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>

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

// 1: it is the owner's; 0: somebody else's; 2: it is done; -1: the server cannot be asked now.
std::int64_t take(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  const auto holder = remote()->take_part(part, owner, ttl_ms);
  if (holder.status().code() == StatusCode::kInvalidArgument) check_ok(kFill, holder.status());
  if (!holder.is_ok()) return -1;
  switch (holder.value()) {
    case remote::Claims::Holder::kMine: return 1;
    case remote::Claims::Holder::kOthers: return 0;
    case remote::Claims::Holder::kDone: break;
  }
  return 2;
}

void renew(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  (void)remote()->renew_part(part, owner, ttl_ms);
}

void end(const std::string& part, const std::string& owner, std::int64_t ttl_ms) {
  (void)remote()->end_part(part, owner, ttl_ms);
}

// Empty where the server cannot be asked now.
std::string generation(const std::string& scope) {
  const auto generation = remote()->generation_of(scope);
  return generation.is_ok() ? generation.value() : std::string();
}

// Has the hits of the calling thread given to the server as well (cache/shared_fill.h). Returns what
// it was.
bool share_hits(bool shares_hits) { return cache::share_hits_here(shares_hits); }

}  // namespace

void register_shared_work(torch::Library& m) {
  m.class_<SharedWork>("SharedWork")
      .def_static("take", &take)
      .def_static("renew", &renew)
      .def_static("end", &end)
      .def_static("generation", &generation)
      .def_static("share_hits", &share_hits);
}

}  // namespace modcache::ops
