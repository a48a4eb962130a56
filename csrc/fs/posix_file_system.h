// SPDX-License-Identifier: Apache-2.0
//
// The real file system. One object serves the whole process; see file_system.h.
#pragma once

#include "fs/file_system.h"

namespace modcache::fs {

// Never destroyed, so threads may use files while the process exits.
FileSystem& posix_file_system();

}  // namespace modcache::fs
