// SPDX-License-Identifier: Apache-2.0
//
// Checks which versions of modcache wrote in a directory, before anything else is done there.
#pragma once

#include "base/status.h"
#include "store/directory/directory.h"

namespace modcache::store {

// Returns kUnsupportedVersion when a newer modcache wrote here. Anything else is ok, also a
// directory that is empty or broken. Changes nothing.
Status check_versions(const Directory& directory);

}  // namespace modcache::store
