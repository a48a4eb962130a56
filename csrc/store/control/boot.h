// SPDX-License-Identifier: Apache-2.0
//
// Which boot of the machine this is: what was not synced may be lost when it ends.
#pragma once

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

// Another one after each start of the machine, never 0. An error: it cannot be told.
Result<Digest128> boot_of_machine(fs::FileSystem& file_system);

// The same for the control page; 0: it cannot be told.
std::uint64_t boot_number(fs::FileSystem& file_system);

}  // namespace modcache::store
