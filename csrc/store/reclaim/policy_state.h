// SPDX-License-Identifier: Apache-2.0
//
// PolicyState: the memory that policies of all processes of a directory share, in the file
// `policy.state`, and the count of lookups and stores by which they measure time. Hints, all of it:
// it survives a crash as it may, and can be lost. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/directory.h"

namespace modcache::store {

class PolicyState {
 public:
  // `may_create`: makes it where it is missing or broken; REQUIRES: the directory's lock is held.
  static Result<std::unique_ptr<PolicyState>> open(const Directory& directory, bool may_create);

  // policy::kSharedStateBytes, mapped as long as this object.
  void* bytes() const;
  std::atomic<std::uint64_t>& ticks() const;

 private:
  PolicyState(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping);

  const std::unique_ptr<fs::File> file_;
  const std::shared_ptr<fs::Mapping> mapping_;
};

}  // namespace modcache::store
