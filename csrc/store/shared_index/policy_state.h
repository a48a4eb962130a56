// SPDX-License-Identifier: Apache-2.0
//
// PolicyState: the memory that the policies of all processes of a directory share, in the file
// `policy.state`, and the count of lookups by which they measure time. All of it is
// hints: it may be lost, and may be inconsistent after a crash. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/directory/directory.h"

namespace modcache::store {

class PolicyState {
 public:
  // `may_create`: creates the file where it is missing or broken. REQUIRES then: the directory's
  // lock is held.
  static Result<std::unique_ptr<PolicyState>> open(const Directory& directory, bool may_create);

  // policy::kSharedStateBytes, mapped as long as this object lives.
  void* bytes() const;
  std::atomic<std::uint64_t>& ticks() const;

 private:
  PolicyState(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping);

  const std::unique_ptr<fs::File> file_;
  const std::shared_ptr<fs::Mapping> mapping_;
};

}  // namespace modcache::store
