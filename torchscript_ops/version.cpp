// SPDX-License-Identifier: Apache-2.0
#include "version.h"

const char* modcache_version() { return MODCACHE_VERSION; }
