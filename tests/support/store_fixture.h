// SPDX-License-Identifier: Apache-2.0
//
// Short words for tests of the store.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "fs/posix_file_system.h"
#include "store/store.h"
#include "support/fixed_policy.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

inline store::Context context_named(const std::string& scope, const std::string& rest = "") {
  return {blake2b_128(scope + "|" + rest), scope, "context of " + scope + " " + rest};
}

inline std::unique_ptr<store::Store> open_store(
    store::StoreOptions options, fs::FileSystem& file_system = fs::posix_file_system()) {
  auto store = store::Store::open(file_system, std::move(options));
  EXPECT_TRUE(store.is_ok()) << store.status().message();
  return store.is_ok() ? std::move(store).value() : nullptr;
}

inline std::unique_ptr<store::Store> open_store(const std::string& directory) {
  store::StoreOptions options;
  options.directory = directory;
  return open_store(std::move(options));
}

inline Result<store::Sequence> put(store::Store& store, const store::Context& context,
                                   const std::string& key, std::string payload,
                                   std::string header = "header", std::int64_t run_us = 7) {
  return store.put({{context, key}, std::move(header), share_bytes(std::move(payload)), run_us});
}

// The payload, "<missing>", or the failure in angle brackets.
inline std::string get(store::Store& store, const store::Context& context, const std::string& key) {
  auto found = store.find({context, key});
  if (found.is_not_found()) return "<missing>";
  if (!found.is_ok()) return "<" + found.status().message() + ">";
  std::string payload(found.value()->payload_size_bytes(), '?');
  const Status status = found.value()->read_payload(payload.data());
  return status.is_ok() ? payload : "<" + status.message() + ">";
}

// A directory, and a context for the tests that need but one.
class StoreTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  const store::Context context_ = context_named("scope");
};

}  // namespace modcache::testing
