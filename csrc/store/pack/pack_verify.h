// SPDX-License-Identifier: Apache-2.0
//
// Reads a pack from beginning to end, to check that it is intact.
#pragma once

#include "base/result.h"
#include "fs/file_system.h"
#include "store/verify/verify.h"

namespace modcache::store {

// Reads everything in the pack that options.directory names, as verify_directory() does.
// kInvalidArgument: not a pack. kCorruption: damaged as a whole.
Result<Verification> verify_pack(fs::FileSystem& file_system, const VerifyOptions& options);

}  // namespace modcache::store
