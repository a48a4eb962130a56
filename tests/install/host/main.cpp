// SPDX-License-Identifier: Apache-2.0
//
// Prints the version of the modcache that the linker kept; fails when it kept none. Says nothing
// of torch, whose headers take half a minute to compile: the example's host does that.
#include <dlfcn.h>

#include <cstdio>

int main() {
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(dlsym(RTLD_DEFAULT, "modcache_version"));
  if (version == nullptr) return 1;
  std::puts(version());
  return 0;
}
