// SPDX-License-Identifier: Apache-2.0
#include "remote/claims.h"

#include <string_view>

#include "base/hash.h"

namespace modcache::remote {
namespace {

constexpr std::string_view kOwned = "owner ";
constexpr std::string_view kDone = "done";
constexpr int kTriesToJoin = 3;

}  // namespace

std::string Claims::name_of(const std::string& part) const {
  return prefix_ + "/ctl/claim-" + blake2b_128(part).hex();
}

std::string Claims::value_of(const std::string& owner) const {
  std::string value = std::string(kOwned) + owner;
  seal_.put_on(value);
  return value;
}

Claims::Claim Claims::claim_of(const SharedBytes& value) const {
  if (value.owner == nullptr) return {};
  std::string_view held = value.view();
  if (!seal_.take_off(held)) return {Holder::kOthers, {}};
  if (held == kDone) return {Holder::kDone, {}};
  const bool is_owned = held.substr(0, kOwned.size()) == kOwned;
  return {Holder::kOthers, is_owned ? std::string(held.substr(kOwned.size())) : std::string()};
}

Result<Claims::Claim> Claims::read(const std::string& name, Backend& backend) const {
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(backend.get_all({name}, values));
  return claim_of(values.front());
}

Result<Claims::Holder> Claims::take(const std::string& part, const std::string& owner,
                                    std::int64_t ttl_ms, Backend& backend) const {
  const NamedValue mine{name_of(part), value_of(owner)};
  MODCACHE_ASSIGN_OR_RETURN(const bool is_taken, backend.put_if_absent(mine, ttl_ms));
  if (is_taken) return Holder::kMine;
  MODCACHE_ASSIGN_OR_RETURN(const Claim held, read(mine.name, backend));
  // Where it ended between the two, whoever asks next gets it.
  if (held.holder == Holder::kNobody) return Holder::kOthers;
  return held.holder == Holder::kOthers && held.owner == owner ? Holder::kMine : held.holder;
}

Result<std::vector<Claims::Holder>> Claims::look(const std::vector<std::string>& parts,
                                                 Backend& backend) const {
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const std::string& part : parts) names.push_back(name_of(part));
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(backend.get_all(names, values));
  std::vector<Holder> holders;
  holders.reserve(values.size());
  for (const SharedBytes& value : values) holders.push_back(claim_of(value).holder);
  holders.resize(parts.size(), Holder::kNobody);
  return holders;
}

Result<std::string> Claims::join(const std::string& part, const std::string& proposed,
                                 std::int64_t ttl_ms, Backend& backend) const {
  const NamedValue own{name_of(part), value_of(proposed)};
  for (int i = 0; i < kTriesToJoin; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(const bool is_first, backend.put_if_absent(own, ttl_ms));
    if (is_first) return proposed;
    MODCACHE_ASSIGN_OR_RETURN(const Claim held, read(own.name, backend));
    if (!held.owner.empty()) return held.owner;
    if (held.holder == Holder::kNobody) continue;  // it ended between the two
    return Status::io_error("the claim '" + own.name + "' is none of modcache's");
  }
  return Status::busy("the claim '" + own.name + "' comes and goes");
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
  // The part of the server that would have it may be down; the others may not.
  return !are_stored.empty() && are_stored.front() ? Status::ok()
                                                   : Status::not_found("it was not stored");
}

}  // namespace modcache::remote
