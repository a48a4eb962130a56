// SPDX-License-Identifier: Apache-2.0
#include "unit/backends/test_backend.h"

#include <cstdlib>
#include <iostream>

#include "backends/redis/redis_backend.h"
#include "remote/address.h"

namespace modcache::testing {

std::unique_ptr<remote::Backend> make_test_backend() {
  const char* const text = std::getenv("MODCACHE_TEST_REMOTE");
  if (text == nullptr) return nullptr;
  auto address = remote::parse_address(text);
  Status status = address.status();
  if (status.is_ok()) status = remote::read_credentials(address.value());
  if (status.is_ok()) {
    remote::BackendOptions options{address.value(), 5'000};
    const char* const timeout_ms = std::getenv("MODCACHE_TEST_REMOTE_TIMEOUT_MS");
    if (timeout_ms != nullptr) options.timeout_ms = std::strtol(timeout_ms, nullptr, 10);
    auto made = backends::make_redis_backend(options);
    if (made.is_ok()) return std::move(made).value();
    status = made.status();
  }
  std::cerr << "MODCACHE_TEST_REMOTE: " << status.message() << "\n";
  std::abort();
}

}  // namespace modcache::testing
