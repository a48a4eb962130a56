// SPDX-License-Identifier: Apache-2.0
//
// Two directories and a server in memory, between which entries are moved.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "cache/context.h"
#include "cache/entry_header.h"
#include "cache/remote_pull.h"
#include "cache/remote_push.h"
#include "remote/record.h"
#include "store/listing/listing.h"
#include "support/fake_backend.h"
#include "support/store_fixture.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

class MoveTest : public ::testing::Test {
 protected:
  static cache::ContextPtr context_of(const std::string& scope, const std::string& name_space = "",
                                      const std::string& method = "forward") {
    return cache::make_context({name_space, scope, method, cache::Form::kWhole, "", ""});
  }
  static std::string header_of(const std::string& key) {
    return cache::pack_header("(float32[1,4])", "value header of " + key, "sample of " + key);
  }
  static std::string payload_of(const std::string& key) {
    return "payload of " + key + std::string(key.size() * 37 % 500, 'p');
  }
  static std::string key_of(int i) { return "key " + std::to_string(i); }

  static void put(const std::string& directory, const cache::ContextPtr& context,
                  const std::string& key, std::int64_t stored_at_us = 0) {
    const auto store = open_store(directory);
    put(*store, context, key, stored_at_us);
    ASSERT_TRUE(store->flush().is_ok());
  }
  static void put(store::Store& store, const cache::ContextPtr& context, const std::string& key,
                  std::int64_t stored_at_us = 0) {
    const std::string header = header_of(key);
    std::vector<store::Sequence> sequences;
    ASSERT_TRUE(store
                    .put_all(*context,
                             {{key, header, share_bytes(payload_of(key)), 7, false, stored_at_us}},
                             sequences)
                    .is_ok());
  }
  void fill(int entries, const cache::ContextPtr& context = context_of("scope")) {
    const auto store = open_store(from_);
    for (int i = 0; i < entries; ++i) put(*store, context, key_of(i));
    ASSERT_TRUE(store->flush().is_ok());
  }

  std::unique_ptr<cache::RemoteBulk> connect() {
    auto bulk = cache::RemoteBulk::connect(
        settings_, [this](const cache::Settings& settings) -> Result<remote::Client::MakeBackend> {
          connected_with_ = settings;
          return ValueServer::connect_to(server_);
        });
    EXPECT_TRUE(bulk.is_ok()) << bulk.status().message();
    return bulk.is_ok() ? std::move(bulk).value() : nullptr;
  }
  cache::PushSource source_of(const std::string& path) {
    auto source = cache::PushSource::open(files_, path);
    EXPECT_TRUE(source.is_ok()) << source.status().message();
    return std::move(source).value();
  }
  cache::PushSummary push(const cache::MoveFilter& filter = {}, bool dry = false) {
    const auto bulk = connect();
    auto summary = cache::push_entries(source_of(from_), *bulk, filter, dry);
    EXPECT_TRUE(summary.is_ok()) << summary.status().message();
    return summary.is_ok() ? std::move(summary).value() : cache::PushSummary{};
  }
  cache::PullSummary pull(const cache::MoveFilter& filter = {}) {
    const auto bulk = connect();
    store::StoreOptions into;
    into.directory = to_;
    into.disk_budget_bytes = budget_bytes_;
    auto summary = cache::pull_entries(files_, *bulk, into, filter);
    EXPECT_TRUE(summary.is_ok()) << summary.status().message();
    return summary.is_ok() ? std::move(summary).value() : cache::PullSummary{};
  }

  // What a directory has of each entry: header, payload, run and time.
  using Entry = std::tuple<std::string, std::string, std::int64_t, std::int64_t>;
  std::map<std::string, Entry> entries_in(const std::string& directory) {
    std::map<std::string, Entry> entries;
    const auto listing = store::Listing::open(files_, directory);
    if (!listing.is_ok()) return entries;
    const auto store = open_store(directory);
    const auto contexts = listing.value()->contexts();
    for (const store::ListedContext& context : contexts.value()) {
      const auto page = listing.value()->page(context, "", 100'000);
      for (const store::ListedEntry& listed : page.value()) {
        const auto found = store->find({context.context, listed.key});
        EXPECT_TRUE(found.is_ok()) << found.status().message();
        if (!found.is_ok()) continue;
        std::string payload(found.value()->payload_size_bytes(), '?');
        EXPECT_TRUE(found.value()->read_payload(payload.data()).is_ok());
        entries[context.context.description + "/" + listed.key] = {
            found.value()->header(), payload, found.value()->run_us(), listed.stored_at_us};
      }
    }
    return entries;
  }

  std::string name_of(const cache::ContextPtr& context, const std::string& key) {
    return "modcache/e/" + store::address_of(context->digest, key).hex();
  }
  std::string name_of_context(const cache::ContextPtr& context) {
    return "modcache/c/" + context->digest.hex();
  }

  fs::FileSystem& files_ = fs::posix_file_system();
  TemporaryDirectory folder_;
  const std::string from_ = folder_ / "from";
  const std::string to_ = folder_ / "to";
  std::uint64_t budget_bytes_ = 1 << 30;
  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  cache::Settings settings_ = settings_of("redis://user:secret@host:6379/0");
  cache::Settings connected_with_;

 private:
  static cache::Settings settings_of(const std::string& remote) {
    cache::Settings settings;
    settings.remote = remote;
    return settings;
  }
};

}  // namespace modcache::testing
