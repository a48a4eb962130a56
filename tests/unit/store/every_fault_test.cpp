// SPDX-License-Identifier: Apache-2.0
//
// Every fault at every call: repeats the life of a store, and each time another call to the file
// system or of SQLite fails. Takes a sample of the calls, unless EVERY_FAULT is set in the
// environment.
#include "support/every_fault.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/captured_log.h"
#include "support/fault_file_system.h"
#include "support/store_life.h"
#include "support/verified.h"

namespace modcache::store {
namespace {

using testing::Fault;
using testing::Ledger;
using testing::StoreLife;

constexpr std::int64_t kFaultsSampled = 24;

StoreOptions options_in(const std::string& directory) {
  StoreOptions options;
  options.directory = directory;
  options.patience_ms = 20;
  return options;
}

// The directory opens without faults and can be written, and everything promised is there, even
// after the database is lost.
void expect_whole(const std::string& directory, Ledger& ledger) {
  testing::FaultFileSystem files(fs::posix_file_system());
  for (const bool is_rebuilt : {false, true}) {
    if (is_rebuilt) std::filesystem::remove(directory + "/index.sqlite");
    StoreOptions options = options_in(directory);
    options.patience_ms = 5000;
    auto store = testing::open_store(options, files);
    ASSERT_NE(store, nullptr);
    ASSERT_FALSE(store->is_read_only());
    testing::expect_clean(files, directory);
    StoreLife::read(*store, ledger, [&](const std::string& name, const std::string& found) {
      // A broken entry is a miss, where a miss is allowed.
      EXPECT_TRUE(ledger.allows(name, found.front() == '<' ? Ledger::kMissing : found))
          << "found for '" << name << "': " << found.substr(0, 80)
          << (is_rebuilt ? " (rebuilt)" : "") << "; may be:" << ledger.expected(name);
    });
    const std::string key = is_rebuilt ? "after a rebuild" : "afterwards";
    ledger.put(key, key);
    EXPECT_TRUE(testing::put(*store, StoreLife::context(), key, key).is_ok());
    const Status flushed = store->flush();
    EXPECT_TRUE(flushed.is_ok()) << flushed.message();
    ledger.flushed(flushed.is_ok());
  }
}

using EveryFaultAtRebuildTest = testing::StoreTest;

class EveryFaultTest : public testing::StoreTest,
                       public ::testing::WithParamInterface<testing::FaultAndForever> {
 protected:
  // Runs the life of a store in which the given call fails; returns how many calls there were.
  std::int64_t live(std::int64_t failing_call) {
    const auto [fault, forever] = GetParam();
    const std::string path = directory_ / std::to_string(failing_call);
    testing::FaultFileSystem files(fs::posix_file_system());
    files.faults().fail_at(failing_call, fault, forever, testing::calls_that_can(fault));
    Ledger ledger;
    StoreLife life(files, options_in(path), ledger,
                   [&](const std::string& name, const std::string& found) {
                     // A miss is never wrong.
                     EXPECT_TRUE(found == Ledger::kMissing || ledger.allows(name, found))
                         << "found for '" << name << "': " << found.substr(0, 80)
                         << "; may be:" << ledger.expected(name);
                   });
    SCOPED_TRACE("call " + std::to_string(failing_call));
    life.run();
    ledger.flushed(false);
    SCOPED_TRACE("failed: " + files.faults().what());
    if (failing_call != 0) {
      files.heal();
      expect_whole(path, ledger);
    }
    std::filesystem::remove_all(path);
    return files.faults().calls();
  }

  const testing::CapturedLog quiet_;
};

TEST_P(EveryFaultTest, gives_no_wrong_value_and_keeps_what_was_promised) {
  const std::int64_t calls = live(0);
  ASSERT_GT(calls, 3);
  RecordProperty("calls", static_cast<int>(calls));
  for (const std::int64_t call : testing::calls_that_fail(calls, kFaultsSampled)) {
    live(call);
    if (HasFatalFailure()) return;
  }
}

// A segment that cannot be opened must not count as an empty one.
TEST_F(EveryFaultAtRebuildTest, leaves_the_database_unmade_while_a_segment_cannot_be_opened) {
  const std::string path = directory_ / "cache";
  {
    auto store = testing::open_store(options_in(path));
    ASSERT_TRUE(testing::put(*store, context_, "key", "value").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
  std::filesystem::remove(path + "/index.sqlite");
  testing::FaultFileSystem files(fs::posix_file_system());
  for (std::int64_t call = 1;; ++call) {
    files.faults().fail_at(call, Fault::kCannotOpen, false, testing::calls({testing::Call::kOpen}));
    const bool is_open = Store::open(files, options_in(path)).is_ok();
    if (files.failures() == 0) break;
    files.heal();
    auto store = testing::open_store(options_in(path));
    EXPECT_EQ(testing::get(*store, context_, "key"), "value")
        << "after " << files.faults().what() << " failed, and opening " << is_open;
    store = nullptr;
    std::filesystem::remove(path + "/index.sqlite");
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryFaultTest, testing::every_fault(), testing::name_of_fault);

}  // namespace
}  // namespace modcache::store
