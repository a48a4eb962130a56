// SPDX-License-Identifier: Apache-2.0
//
// Checks which versions of modcache wrote in a directory, before anything else is done there.
#pragma once

#include "base/status.h"
#include "store/directory/directory.h"

namespace modcache::store {

// Returns kUnsupportedVersion when a newer or an older modcache wrote here, whose directories this
// one does not read. Anything else is ok, also a directory that is empty or broken. Changes
// nothing.
Status check_versions(const Directory& directory);

}  // namespace modcache::store
