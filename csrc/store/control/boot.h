// SPDX-License-Identifier: Apache-2.0
//
// Identifies the current boot of the machine: data that was not synced may be lost when it ends.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "base/result.h"
#include "fs/file_system.h"

namespace modcache::store {

// Returns a digest that differs after each start of the machine, and is never 0. An error means
// that it cannot be determined.
Result<Digest128> boot_of_machine(fs::FileSystem& file_system);

// Returns the same as a number for the control page; 0 when it cannot be determined.
std::uint64_t boot_number(fs::FileSystem& file_system);

}  // namespace modcache::store
