// SPDX-License-Identifier: Apache-2.0
//
// Claims: who does which part of a work that machines share. A claim is a value on the server that
// its owner put there first; it says who he is, and ends with its time to live unless he renews it,
// so that the part of a dead owner is taken over. A part that is done has a mark in its place.
//
// Claims spare work and decide nothing else: where the server cannot be asked, or two owners both
// hold a part, it is done twice. Functions over a backend; thread-safe as far as that is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "remote/backend.h"
#include "remote/seal.h"

namespace modcache::remote {

class Claims {
 public:
  // The prefix of names on the server. `seal` must outlive it.
  Claims(const Seal& seal, std::string prefix) : seal_(seal), prefix_(std::move(prefix)) {}

  enum class Holder { kNobody, kMine, kOthers, kDone };

  // Takes the part for so long, unless somebody else has it or it is done. The text of a part is
  // the same on all machines and says what the work is. An owner's text is nobody else's.
  Result<Holder> take(const std::string& part, const std::string& owner, std::int64_t ttl_ms,
                      Backend& backend) const;
  // Who has each of these parts; kOthers may also be the caller. One question.
  Result<std::vector<Holder>> look(const std::vector<std::string>& parts, Backend& backend) const;
  // The owner of a part that all of a group hold together: whoever comes first makes it `proposed`,
  // and the others get to know that. Each of them renews it.
  Result<std::string> join(const std::string& part, const std::string& proposed,
                           std::int64_t ttl_ms, Backend& backend) const;
  // False: it is not this owner's any more.
  Result<bool> renew(const std::string& part, const std::string& owner, std::int64_t ttl_ms,
                     Backend& backend) const;
  // Others may take it.
  Status give_back(const std::string& part, const std::string& owner, Backend& backend) const;
  // Nobody takes it for so long.
  Status mark_done(const std::string& part, std::int64_t ttl_ms, Backend& backend) const;

 private:
  struct Claim {
    Holder holder = Holder::kNobody;
    std::string owner;  // empty: nobody, or the value is none of modcache's
  };

  std::string name_of(const std::string& part) const;
  std::string value_of(const std::string& owner) const;
  Claim claim_of(const SharedBytes& value) const;
  Result<Claim> read(const std::string& name, Backend& backend) const;

  const Seal& seal_;
  const std::string prefix_;
};

}  // namespace modcache::remote
