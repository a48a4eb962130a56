// SPDX-License-Identifier: Apache-2.0
//
// Machines that share a server in memory: caches with directories of their own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/fake_backend.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

inline constexpr std::int64_t kLongRunUs = 1'000'000;

class Machine : public Process {
 public:
  Machine(std::shared_ptr<ValueServer> server, const std::string& directory,
          cache::Options options = {})
      : Process(
            [server = std::move(server)](const cache::Settings&)
                -> Result<remote::Client::MakeBackend> { return ValueServer::connect_to(server); },
            with_defaults(std::move(options), directory)) {}

  void store(std::string_view key, const std::string& text, const std::string& signature = "",
             bool replaces = false) {
    cache::StoreOptions options;
    options.replaces = replaces;
    Process::store(key, text, signature, kLongRunUs, options);
  }
  // Stores, and waits until the server has it.
  void share(std::string_view key, const std::string& text, const std::string& signature = "") {
    store(key, text, signature);
    cache().flush();
  }
  std::string stats() {
    std::string text;
    for (const char* const name : {"hits_memory", "hits_disk", "hits_remote"}) {
      text += (text.empty() ? "" : " ") + std::to_string(stat(name));
    }
    return text;
  }
  // What the server alone answers.
  cache::Found find_on_server(const cache::Keys& keys) {
    cache::Found found(keys.size());
    cache().remote()->find(keys, cache::Access::kWrite, cache::OnMiss::kIgnore, found);
    return found;
  }
  std::string entry_name(std::string_view key) {
    return "modcache/e/" + keys(key).addresses[0].hex();
  }

 private:
  static cache::Options with_defaults(cache::Options options, const std::string& directory) {
    options.emplace("dir", directory);
    options.emplace("remote", "redis://user:secret@host/0");
    options.emplace("remote_timeout_ms", "10000");
    return options;
  }
};

class RemoteMachinesTest : public ::testing::Test {
 protected:
  ~RemoteMachinesTest() override { server_->release(); }

  std::unique_ptr<Machine> machine(const std::string& name, cache::Options options = {}) {
    return std::make_unique<Machine>(server_, directory_ / name, std::move(options));
  }

  TemporaryDirectory directory_;
  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
};

}  // namespace modcache::testing
