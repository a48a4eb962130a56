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

class Machine {
 public:
  Machine(std::shared_ptr<ValueServer> server, const std::string& directory,
          cache::Options options = {})
      : cache_(text_format(), fs::posix_file_system(),
               [server = std::move(server)](
                   const cache::Settings&) -> Result<remote::Client::MakeBackend> {
                 return ValueServer::connect_to(server);
               }) {
    options.emplace("dir", directory);
    options.emplace("remote", "redis://user:secret@host/0");
    options.emplace("remote_timeout_ms", "10000");
    EXPECT_TRUE(cache_.configure(options).is_ok());
  }

  cache::Cache& cache() { return cache_; }
  std::string lookup(const std::string& key, const std::string& signature = "",
                     bool may_write = true) {
    cache::SingleFlight::Lead lead;
    return text_of(cache_.session()->lookup(request(key, signature), may_write, lead));
  }
  void store(const std::string& key, const std::string& text, const std::string& signature = "",
             bool replaces = false) {
    cache_.session()->store(request(key, signature), text_entry(text, signature, kLongRunUs),
                            replaces);
  }
  // Stores, and waits until the server has it.
  void share(const std::string& key, const std::string& text, const std::string& signature = "") {
    store(key, text, signature);
    cache_.flush();
  }
  std::int64_t stat(const std::string& name) { return cache_.stats().at(name); }
  std::string stats() {
    std::string text;
    for (const char* const name : {"hits_memory", "hits_disk", "hits_remote"}) {
      text += (text.empty() ? "" : " ") + std::to_string(stat(name));
    }
    return text;
  }
  static std::string entry_name(const std::string& key) {
    return "modcache/e/" + request(key).id().address.hex();
  }
  static cache::Request request(std::string_view key, std::string_view signature = "") {
    return Process::request(key, signature);
  }

 private:
  cache::Cache cache_;
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
