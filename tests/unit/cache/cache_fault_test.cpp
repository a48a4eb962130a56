// SPDX-License-Identifier: Apache-2.0
//
// Whatever fails in the directory, a call gets what its model would have given: every fault at
// every call to the file system and of SQLite, seen from the cache. A sample of the calls, unless
// EVERY_FAULT is set in the environment.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/every_fault.h"
#include "support/fault_file_system.h"

namespace modcache::cache {
namespace {

using testing::Fault;

constexpr std::int64_t kSample = 12;

// What the model gives.
std::string output_of(std::string_view key, std::string_view signature) {
  return "f(" + std::string(key) + ", " + std::string(signature) + ")";
}

// A process whose calls go through a cache in the directory.
class Host {
 public:
  Host(fs::FileSystem& files, const std::string& directory, bool has_memory)
      : cache_(testing::text_format(), files) {
    EXPECT_TRUE(
        cache_.configure({{"dir", directory}, {"memory", has_memory ? "1MB" : "0"}}).is_ok());
  }

  // One call: the module's output, from wherever it comes.
  std::string call(const std::string& key, const std::string& signature) {
    const Keys keys = testing::keys_of(cache_, key, signature);
    Found found = cache_.lookup(keys, testing::run_options());
    if (found.is_found(0)) {
      ++hits_;
      return testing::text_of(found);
    }
    const Generation begun = cache_.begin_run(keys, /*may_write=*/true);
    const std::string output = output_of(key, signature);
    store(keys, {testing::text_entry(output, signature, 1000)}, begun);
    found.lead.stored();
    return output;
  }

  std::vector<std::string> call_rows(const std::vector<std::string>& names) {
    const Keys keys = testing::rows_of(cache_, {names.begin(), names.end()}, "row");
    LookupOptions options;
    options.may_write = true;
    options.will_run = true;
    Found found = cache_.lookup(keys, options);
    std::vector<std::string> outputs;
    for (std::size_t i = 0; i < keys.size(); ++i) outputs.push_back(row(keys, found, i));
    const Generation begun = cache_.begin_run(keys, /*may_write=*/true);
    std::vector<EntryPtr> entries;
    for (const std::size_t i : found.led) {
      outputs[i] = output_of(keys.keys[i], "row");
      entries.push_back(testing::text_entry(outputs[i], "row", 1000));
    }
    store(keys.only(found.led), entries, begun);
    return outputs;
  }

  Cache& cache() { return cache_; }
  std::int64_t hits() const { return hits_; }

 private:
  void store(const Keys& keys, const std::vector<EntryPtr>& entries, const Generation& begun) {
    StoreOptions options;
    options.since = &begun;
    cache_.store(keys, entries, options);
  }
  std::string row(const Keys& keys, Found& found, std::size_t i) {
    if (!found.is_found(i)) return "";
    if (!found.is_row(i)) return testing::text_of(found.entry(i));
    const std::size_t place = found.row(i);
    std::string text(found.rows().payload_size_bytes(place), '?');
    const Status status = found.rows().read(place, text.data());
    if (status.is_ok()) return text;
    cache_.refuse(keys, found, i, status, true);
    return "";
  }

  Cache cache_;
  std::int64_t hits_ = 0;
};

class CacheFaultTest : public ::testing::Test,
                       public ::testing::WithParamInterface<testing::FaultAndForever> {
 protected:
  static void expect_right_calls(Host& host) {
    for (const char* key : {"a", "b", "c"}) {
      for (const char* signature : {"float32[2]", "float32[3]", "float32[3]"}) {
        EXPECT_EQ(host.call(key, signature), output_of(key, signature));
      }
    }
    const std::vector<std::string> keys = {"r0", "r1", "r2", "r3", "r4"};
    const std::vector<std::string> outputs = host.call_rows(keys);
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(outputs[i], output_of(keys[i], "row"));
  }

  // Returns how many calls there were.
  std::int64_t live(std::int64_t failing_call) {
    const auto [fault, forever] = GetParam();
    SCOPED_TRACE("call " + std::to_string(failing_call));
    const testing::TemporaryDirectory place;
    const std::string dir = place / "cache";
    testing::FaultFileSystem files(fs::posix_file_system());
    files.faults().fail_at(failing_call, fault, forever, testing::calls_that_can(fault));
    {
      Host host(files, dir, false);
      expect_right_calls(host);
      host.cache().flush();
      expect_right_calls(host);
      (void)host.cache().clear({"", "r"}, Cache::Tier::kAll);
      expect_right_calls(host);
      (void)host.cache().stats();
      host.cache().close();
    }
    {
      Host host(files, dir, true);
      expect_right_calls(host);
      (void)host.cache().clear({}, Cache::Tier::kAll);
      expect_right_calls(host);
      host.cache().flush();
    }
    SCOPED_TRACE("failed: " + files.faults().what());
    files.heal();
    expect_usable(dir);
    return files.faults().calls();
  }

  // Without faults the directory serves hits again.
  static void expect_usable(const std::string& dir) {
    testing::FaultFileSystem files(fs::posix_file_system());
    {
      Host host(files, dir, false);
      expect_right_calls(host);
      host.cache().flush();
    }
    Host host(files, dir, false);
    EXPECT_EQ(host.call("a", "float32[3]"), output_of("a", "float32[3]"));
    EXPECT_EQ(host.hits(), 1);
    EXPECT_EQ(host.cache().stats().at("errors"), 0);
    EXPECT_EQ(host.cache().stats().at("corrupt"), 0);
  }

  const testing::CapturedLog quiet_;
};

TEST_P(CacheFaultTest, every_call_gets_what_its_model_gives) {
  const std::int64_t calls = live(0);
  ASSERT_GT(calls, 3);
  for (const std::int64_t call : testing::calls_that_fail(calls, kSample)) {
    live(call);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, CacheFaultTest, testing::every_fault(), testing::name_of_fault);

}  // namespace
}  // namespace modcache::cache
