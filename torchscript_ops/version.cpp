// SPDX-License-Identifier: Apache-2.0

// "0.1.0": the one C symbol of libmodcache.so, for a host that wants to know which one it loaded.
extern "C" __attribute__((visibility("default"))) const char* modcache_version() {
  return MODCACHE_VERSION;
}
