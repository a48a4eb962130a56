// SPDX-License-Identifier: Apache-2.0
//
// A library that exports what libmodcache_remote.so does, for engine_library_test.cpp. It links to
// nothing of modcache. Its backends do nothing.
#include <string>

#include "remote/engine_library.h"

namespace {

using modcache::Result;
using modcache::SharedBytes;
using modcache::Status;
using modcache::remote::BackendOptions;
using modcache::remote::NamedValue;

class IdleBackend final : public modcache::remote::Backend {
 public:
  Status get_all(const std::vector<std::string>&, std::vector<SharedBytes>&) override { return {}; }
  Status put_all(const std::vector<NamedValue>&, std::int64_t, std::vector<bool>&) override {
    return {};
  }
  Status remove_all(const std::vector<std::string>&) override { return {}; }
  Result<bool> put_if_absent(const NamedValue&) override { return false; }
  Result<bool> remove_if(std::string_view, std::string_view) override { return false; }
  Status ping() override { return {}; }
};

}  // namespace

#define MODCACHE_EXPORT extern "C" __attribute__((visibility("default")))

MODCACHE_EXPORT int modcache_remote_interface_version() {
  return modcache::remote::kInterfaceVersion + FAKE_INTERFACE_VERSION - 1;
}

// The host called "wrong" is one that it makes no backend for.
MODCACHE_EXPORT modcache::remote::Backend* modcache_remote_make_backend(
    const BackendOptions& options, std::string& error) {
  if (options.address.hosts.front().name != "wrong") return new IdleBackend;
  error = "wrong for " + std::to_string(options.timeout_ms) + " ms";
  return nullptr;
}
