// SPDX-License-Identifier: Apache-2.0
#include "remote/claims.h"

#include <string_view>
#include <vector>

#include "base/hash.h"

namespace modcache::remote {
namespace {

constexpr std::string_view kOwned = "owner ";
constexpr std::string_view kDone = "done";

}  // namespace

std::string Claims::name_of(const std::string& part) const {
  return prefix_ + "/ctl/claim-" + blake2b_128(part).hex();
}

std::string Claims::value_of(const std::string& owner) const {
  std::string value = std::string(kOwned) + owner;
  seal_.put_on(value);
  return value;
}

Result<Claims::Holder> Claims::take(const std::string& part, const std::string& owner,
                                    std::int64_t ttl_ms, Backend& backend) const {
  const NamedValue mine{name_of(part), value_of(owner)};
  MODCACHE_ASSIGN_OR_RETURN(const bool is_taken, backend.put_if_absent(mine, ttl_ms));
  if (is_taken) return Holder::kMine;
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(backend.get_all({mine.name}, values));
  // It ended between the two: whoever asks next gets it.
  if (values.front().owner == nullptr) return Holder::kOthers;
  std::string_view held = values.front().view();
  if (held == mine.value) return Holder::kMine;
  return seal_.take_off(held) && held == kDone ? Holder::kDone : Holder::kOthers;
}

Result<bool> Claims::renew(const std::string& part, const std::string& owner, std::int64_t ttl_ms,
                           Backend& backend) const {
  return backend.renew_if(name_of(part), value_of(owner), ttl_ms);
}

Status Claims::give_back(const std::string& part, const std::string& owner,
                         Backend& backend) const {
  return backend.renew_if(name_of(part), value_of(owner), /*ttl_ms=*/0).status();
}

Status Claims::mark_done(const std::string& part, std::int64_t ttl_ms, Backend& backend) const {
  std::string value(kDone);
  seal_.put_on(value);
  std::vector<bool> are_stored;
  MODCACHE_RETURN_IF_ERROR(backend.put_all({{name_of(part), value}}, ttl_ms, are_stored));
  return !are_stored.empty() && are_stored.front() ? Status::ok()
                                                   : Status::io_error("it was not stored");
}

}  // namespace modcache::remote
