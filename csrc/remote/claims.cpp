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

Result<std::vector<Claims::Holder>> Claims::look(const std::vector<std::string>& parts,
                                                 Backend& backend) const {
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const std::string& part : parts) names.push_back(name_of(part));
  std::vector<SharedBytes> values;
  MODCACHE_RETURN_IF_ERROR(backend.get_all(names, values));
  std::vector<Holder> holders(parts.size(), Holder::kNobody);
  for (std::size_t i = 0; i < parts.size() && i < values.size(); ++i) {
    if (values[i].owner == nullptr) continue;
    std::string_view held = values[i].view();
    holders[i] = seal_.take_off(held) && held == kDone ? Holder::kDone : Holder::kOthers;
  }
  return holders;
}

Result<std::string> Claims::join(const std::string& part, const std::string& proposed,
                                 std::int64_t ttl_ms, Backend& backend) const {
  const NamedValue own{name_of(part), value_of(proposed)};
  for (int i = 0; i < kTriesToJoin; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(const bool is_first, backend.put_if_absent(own, ttl_ms));
    if (is_first) return proposed;
    std::vector<SharedBytes> values;
    MODCACHE_RETURN_IF_ERROR(backend.get_all({own.name}, values));
    if (values.front().owner == nullptr) continue;  // it ended between the two
    std::string_view held = values.front().view();
    if (seal_.take_off(held) && held.substr(0, kOwned.size()) == kOwned) {
      return std::string(held.substr(kOwned.size()));
    }
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
  return !are_stored.empty() && are_stored.front() ? Status::ok()
                                                   : Status::io_error("it was not stored");
}

}  // namespace modcache::remote
