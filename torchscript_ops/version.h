// SPDX-License-Identifier: Apache-2.0
//
// The one C symbol of libmodcache.so, for a host that wants to know which one it loaded.
#pragma once

// "0.1.0". A constant; any thread.
extern "C" __attribute__((visibility("default"))) const char* modcache_version();
