// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/response_cache.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"
#include "store/counters/counter_totals.h"
#include "support/captured_log.h"
#include "support/packed_response.h"
#include "support/temporary_directory.h"
#include "support/text_value.h"

namespace modcache::triton_cache {
namespace {

using testing::CapturedLog;
using ::testing::HasSubstr;
using testing::packed_response;
using ::testing::SizeIs;
using testing::TemporaryDirectory;

constexpr const char* kPacking = "Triton API 1.34";

std::shared_ptr<Response> one_buffer(const std::string& bytes) {
  auto response = Response::allocate({bytes.size()}).value();
  std::memcpy(response->writable_payload(), bytes.data(), bytes.size());
  return response;
}

class ResponseCacheTest : public ::testing::Test {
 protected:
  std::string config(const std::string& more = "") const {
    return R"({"dir": ")" + directory_ / "cache" + '"' + more + '}';
  }
  std::unique_ptr<ResponseCache> open(const std::string& more = "",
                                      const std::string& packing = kPacking) const {
    auto created = ResponseCache::create(config(more), packing);
    EXPECT_TRUE(created.is_ok()) << created.status().message();
    return std::move(created).value();
  }
  static std::string find(ResponseCache& responses, const std::string& key) {
    const ResponsePtr found = responses.lookup(key);
    return found == nullptr ? "<missing>" : std::string(found->payload());
  }
  static void put(ResponseCache& responses, const std::string& key, const std::string& bytes) {
    const auto wanted = responses.wanted(key, bytes.size());
    if (wanted.has_value()) responses.insert(*wanted, one_buffer(bytes));
  }
  static std::int64_t stat(ResponseCache& responses, const std::string& name) {
    return responses.cache().stats().at(name);
  }
  void set_mode(const char* mode) const {
    const Status status =
        store::set_directory_mode(fs::posix_file_system(), directory_ / "cache",
                                  store::parse_directory_mode(mode).value(), /*patience_ms=*/10000);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }

  const TemporaryDirectory directory_;
  const std::string one_ = packed_response({"one"});
  const std::string two_ = packed_response({"two"});
};

TEST_F(ResponseCacheTest, finds_what_was_inserted) {
  const auto responses = open();
  EXPECT_EQ(find(*responses, "1"), "<missing>");
  put(*responses, "1", one_);
  put(*responses, "2", two_);
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_EQ(find(*responses, "2"), two_);
  EXPECT_EQ(stat(*responses, "hits_memory"), 2);
  EXPECT_EQ(stat(*responses, "misses"), 1);
  EXPECT_EQ(stat(*responses, "stored"), 2);
}

TEST_F(ResponseCacheTest, survives_a_restart) {
  put(*open(), "1", one_);
  const auto responses = open();
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_EQ(stat(*responses, "hits_disk"), 1);
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_EQ(stat(*responses, "hits_memory"), 1);
}

TEST_F(ResponseCacheTest, counts_in_the_directory_beyond_the_life_of_a_server) {
  put(*open(), "1", one_);
  for (int server = 0; server < 2; ++server) find(*open(), "1");
  find(*open(), "2");
  const auto counters = store::read_counters(fs::posix_file_system(), directory_ / "cache");
  ASSERT_TRUE(counters.is_ok());
  const auto count = [&](cache::Counter counter) {
    std::int64_t sum = 0;
    for (const store::CountedDay& day : counters.value().days) {
      if (day.scope == "triton") sum += day.counts.at(static_cast<std::size_t>(counter));
    }
    return sum;
  };
  EXPECT_EQ(count(cache::Counter::kHitsDisk), 2);
  EXPECT_EQ(count(cache::Counter::kMisses), 1);
  EXPECT_EQ(count(cache::Counter::kStored), 1);
}

TEST_F(ResponseCacheTest, is_shared_by_servers) {
  const auto here = open();
  const auto there = open();
  put(*here, "1", one_);
  here->cache().flush();
  EXPECT_EQ(find(*there, "1"), one_);
}

TEST_F(ResponseCacheTest, a_newer_response_replaces_the_older_one) {
  const auto responses = open();
  put(*responses, "1", one_);
  put(*responses, "1", two_);
  EXPECT_EQ(find(*responses, "1"), two_);
}

TEST_F(ResponseCacheTest, a_namespace_is_of_its_own) {
  put(*open(R"(, "namespace": "mine")"), "1", one_);
  EXPECT_EQ(find(*open(), "1"), "<missing>");
  EXPECT_EQ(find(*open(R"(, "namespace": "mine")"), "1"), one_);
}

// Triton unpacks without a look at bounds: bytes of another version could end it.
TEST_F(ResponseCacheTest, servers_that_may_pack_otherwise_do_not_share) {
  put(*open(), "1", one_);
  EXPECT_EQ(find(*open("", "Triton API 1.35"), "1"), "<missing>");
}

TEST_F(ResponseCacheTest, keeps_nothing_that_triton_could_not_unpack) {
  const auto responses = open();
  put(*responses, "1", "garbage");
  put(*responses, "2", packed_response({}));
  EXPECT_EQ(find(*responses, "1"), "<missing>");
  EXPECT_EQ(find(*responses, "2"), "<missing>");
  EXPECT_EQ(stat(*responses, "bypassed_type"), 2);
  EXPECT_EQ(stat(*responses, "stored"), 0);
}

TEST_F(ResponseCacheTest, a_bad_setting_says_what_is_valid) {
  const auto message = [&](const std::string& more) {
    return ResponseCache::create(config(more), kPacking).status().message();
  };
  EXPECT_THAT(message(R"(, "size": "1")"), HasSubstr("valid settings are: dir, mode"));
  EXPECT_THAT(message(R"(, "disk": "lots")"), HasSubstr("a number of bytes such as"));
  EXPECT_THAT(message(R"(, "mode": "sometimes")"), HasSubstr("off, read, on, refresh, verify"));
}

TEST_F(ResponseCacheTest, notes_how_long_the_response_took) {
  put(*open(), "unasked", one_);
  const auto responses = open();
  find(*responses, "1");
  put(*responses, "1", one_);
  EXPECT_EQ(stat(*responses, "saved_us"), 0);
  const std::int64_t run_us = stat(*responses, "run_us");
  find(*responses, "1");
  EXPECT_EQ(stat(*responses, "saved_us"), run_us);
}

TEST_F(ResponseCacheTest, holds_its_budgets) {
  const auto responses = open(R"(, "memory": "200kB", "disk": "1MB")");
  const std::string large = packed_response({std::string(50'000, 'x')});
  for (int i = 0; i < 100; ++i) {
    put(*responses, std::to_string(i), large);
  }
  responses->cache().flush();
  EXPECT_LE(stat(*responses, "bytes_memory"), 200'000);
  EXPECT_LE(stat(*responses, "bytes_disk"), 1'000'000);
  EXPECT_GE(stat(*responses, "entries_disk"), 5);
}

TEST_F(ResponseCacheTest, wants_no_response_that_is_larger_than_both_budgets) {
  const CapturedLog log;
  const auto responses = open(R"(, "memory": "1MB", "disk": "2MB")");
  EXPECT_TRUE(responses->wanted("1", 2'000'000).has_value());
  EXPECT_FALSE(responses->wanted("1", 2'000'001).has_value());
  EXPECT_EQ(stat(*responses, "not_kept"), 1);
  EXPECT_THAT(log.about("larger than all that the settings"), SizeIs(1));
}

// --- Admission ---------------------------------------------------------------------------------

TEST_F(ResponseCacheTest, under_admission_second_a_response_is_stored_at_the_second_request) {
  const auto responses = open(R"(, "admission": "second")");
  for (const char* expected : {"<missing>", "<missing>"}) {
    EXPECT_EQ(find(*responses, "1"), expected);
    put(*responses, "1", one_);
  }
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_EQ(stat(*responses, "stored"), 1);
  EXPECT_EQ(stat(*responses, "misses"), 2);
}

TEST_F(ResponseCacheTest, under_admission_second_keys_that_never_repeat_miss_and_store_nothing) {
  const auto responses = open(R"(, "admission": "second")");
  int wanted = 0;
  for (int i = 0; i < 10'000; ++i) {
    find(*responses, std::to_string(i));
    wanted += responses->wanted(std::to_string(i), 1).has_value() ? 1 : 0;
  }
  EXPECT_LE(wanted, 10) << "few new keys are taken for known ones";
  EXPECT_EQ(stat(*responses, "misses"), 10'000);
}

TEST_F(ResponseCacheTest, under_admission_second_refresh_stores_at_once) {
  const auto responses = open(R"(, "admission": "second")");
  responses->cache().set_mode(cache::Mode::kRefresh);
  EXPECT_TRUE(responses->wanted("1", 1).has_value());
  responses->cache().set_mode(cache::Mode::kOn);
  EXPECT_FALSE(responses->wanted("1", 1).has_value());
}

// --- Modes -------------------------------------------------------------------------------------

TEST_F(ResponseCacheTest, is_switched_off_and_on_from_outside) {
  const auto responses = open();
  put(*responses, "1", one_);
  set_mode("off");
  EXPECT_EQ(find(*responses, "1"), "<missing>");
  EXPECT_FALSE(responses->wanted("3", 1).has_value());
  put(*responses, "2", two_);
  EXPECT_EQ(stat(*responses, "bypassed_off"), 1);
  set_mode("on");
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_EQ(find(*responses, "2"), "<missing>");
}

TEST_F(ResponseCacheTest, mode_read_keeps_nothing) {
  put(*open(), "1", one_);
  const auto responses = open(R"(, "mode": "read")");
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_FALSE(responses->wanted("3", 1).has_value());
  put(*responses, "2", two_);
  EXPECT_EQ(find(*responses, "2"), "<missing>");
}

TEST_F(ResponseCacheTest, mode_refresh_runs_and_replaces) {
  put(*open(), "1", one_);
  const auto responses = open(R"(, "mode": "refresh")");
  EXPECT_EQ(find(*responses, "1"), "<missing>");
  put(*responses, "1", two_);
  responses->cache().flush();
  EXPECT_EQ(find(*open(), "1"), two_);
}

TEST_F(ResponseCacheTest, mode_verify_runs_and_compares) {
  const CapturedLog log;
  put(*open(), "1", one_);
  const auto responses = open(R"(, "mode": "verify")");
  EXPECT_EQ(find(*responses, "1"), "<missing>");
  EXPECT_TRUE(responses->wanted("3", 1).has_value());
  put(*responses, "1", one_);
  EXPECT_EQ(stat(*responses, "verify_differences"), 0);
  put(*responses, "1", two_);
  EXPECT_EQ(stat(*responses, "verify_differences"), 1);
  EXPECT_THAT(log.about("under its name and version"), SizeIs(1));
  EXPECT_EQ(find(*open(), "1"), one_);
}

// --- What is broken ----------------------------------------------------------------------------

TEST_F(ResponseCacheTest, an_entry_that_is_no_response_is_a_miss_and_is_replaced) {
  cache::ContextParts parts;
  parts.scope = ResponseCache::kScope;
  parts.method = "infer";
  parts.arguments = kPacking;
  const auto store_in = [&](cache::Cache& other, std::string_view key,
                            const cache::EntryPtr& entry) {
    cache::Keys keys(cache::make_context(parts), key);
    keys.configuration = other.configuration();
    ASSERT_EQ(other.store(keys, {&entry, 1}), 1u);
  };
  {
    const testing::TextFormat format;
    cache::Cache other(format);
    ASSERT_TRUE(other.configure({{"dir", directory_ / "cache"}}).is_ok());
    store_in(other, "1", testing::text_entry("a text"));
    other.flush();
  }
  {
    const ResponseFormat format;
    cache::Cache other(format);
    ASSERT_TRUE(other.configure({{"dir", directory_ / "cache"}}).is_ok());
    store_in(other, "2",
             std::make_shared<const cache::Entry>(
                 cache::Entry{one_buffer("garbage"), "", std::nullopt}));
    other.flush();
  }
  const auto responses = open();
  for (const char* key : {"1", "2"}) {
    EXPECT_EQ(find(*responses, key), "<missing>");
    put(*responses, key, one_);
    EXPECT_EQ(find(*responses, key), one_);
  }
  EXPECT_EQ(stat(*responses, "corrupt"), 2);
  responses->cache().flush();
  EXPECT_EQ(find(*open(), "1"), one_);
}

TEST_F(ResponseCacheTest, without_a_directory_memory_goes_on) {
  const CapturedLog log;
  std::filesystem::create_directory(directory_ / "cache");
  std::filesystem::create_directory(directory_ / "cache/index.sqlite");
  const auto responses = open();
  put(*responses, "1", one_);
  EXPECT_EQ(find(*responses, "1"), one_);
  EXPECT_GE(stat(*responses, "errors"), 1);
}

}  // namespace
}  // namespace modcache::triton_cache
