// SPDX-License-Identifier: Apache-2.0
//
// FaultSqliteVfs: a VFS over SQLite's own, whose calls fail when a Faults says so and are told to a
// DiskModel. It is registered under a name of its own while it lives, which must be longer than any
// database that was opened with it.
#pragma once

#include <memory>

#include "support/disk_model.h"
#include "support/faults.h"

namespace modcache::testing {

class FaultSqliteVfs {
 public:
  // Both must outlive it; `disk` may be null.
  FaultSqliteVfs(Faults& faults, DiskModel* disk);
  ~FaultSqliteVfs();
  FaultSqliteVfs(const FaultSqliteVfs&) = delete;
  FaultSqliteVfs& operator=(const FaultSqliteVfs&) = delete;

  const char* name() const;

 private:
  struct Shim;
  std::unique_ptr<Shim> shim_;
};

}  // namespace modcache::testing
