// SPDX-License-Identifier: Apache-2.0
//
// Death at any call: a child lives through everything that is done to a store and is killed before,
// or in the middle of, a call to the file system or of SQLite. It tells its parent what it was
// promised. A sample of the calls, unless EVERY_FAULT is set in the environment.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "support/captured_log.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/every_fault.h"
#include "support/fault_file_system.h"
#include "support/store_life.h"
#include "support/verified.h"

namespace modcache::store {
namespace {

using testing::ChildProcess;
using testing::Fault;
using testing::Ledger;
using testing::Pipe;
using testing::StoreLife;

constexpr std::int64_t kCrashesSampled = 40;

struct Told {
  Ledger::Event event;
  std::uint32_t name_size;
  std::uint32_t value_size;
};

void tell(const Pipe& pipe, Ledger::Event event, const std::string& name,
          const std::string& value) {
  pipe.write(Told{event, static_cast<std::uint32_t>(name.size()),
                  static_cast<std::uint32_t>(value.size())});
  pipe.write(name.data(), name.size());
  pipe.write(value.data(), value.size());
}

bool read_text(const Pipe& pipe, std::uint32_t size, std::string& text) {
  text.resize(size);
  return pipe.read(text.data(), size);
}

// Reads until every process that writes to the pipe has ended.
void listen(const Pipe& pipe, Ledger& ledger) {
  Told told{};
  std::string name;
  std::string value;
  while (pipe.read(told) && read_text(pipe, told.name_size, name) &&
         read_text(pipe, told.value_size, value)) {
    ledger.note(told.event, name, value);
  }
}

using StoreAfterAWhileTest = testing::StoreTest;

// A process dies between its commit and telling others of it, which is when SQLite unlocks.
class UntoldRemovalTest : public ::testing::Test {
 protected:
  // Another process replaces and clears, and is killed at its `last_unlock`-th unlocking. A store
  // that knew the old values looks at the result once it was `told`. Returns false when the process
  // was not killed.
  bool try_kill(int last_unlock, const std::function<void(Store&)>& told) {
    testing::TemporaryDirectory directory;
    testing::WaitingChild child([&] {
      testing::FaultFileSystem files(fs::posix_file_system());
      StoreOptions options;
      options.directory = directory.path();
      auto store = testing::open_store(options, files);
      const auto unlocks = testing::calls({testing::Call::kUnlock}) | testing::kOfSqlite;
      files.faults().fail_at(last_unlock, Fault::kKill, false, unlocks);
      (void)testing::put(*store, context_, "replaced", "new");
      (void)store->flush();
      (void)store->clear({"", "cleared"});
      return 0;
    });
    auto store = testing::open_store(directory.path());
    for (const char* key : {"replaced", "cleared"}) {
      EXPECT_TRUE(testing::put(*store, context_, key, "old").is_ok());
    }
    EXPECT_TRUE(store->flush().is_ok());
    for (const char* key : {"replaced", "cleared"}) {
      EXPECT_EQ(testing::get(*store, context_, key), "old");
    }
    const std::uint64_t removals = store->removals();
    if (child.run() == 0) return false;
    const bool is_untold = store->removals() == removals;
    told(*store);
    auto fresh = testing::open_store(directory.path());
    for (const char* key : {"replaced", "cleared"}) {
      const std::string now = testing::get(*fresh, context_, key);
      EXPECT_EQ(testing::get(*store, context_, key), now) << key;
      if (is_untold && now != "old") ++untold_;
    }
    return true;
  }

  const Context context_ = testing::context_named("scope");
  int untold_ = 0;  // changes that nobody would have been told of
};

TEST_F(UntoldRemovalTest, is_told_by_whoever_has_the_lock_next) {
  for (int unlock = 1; try_kill(unlock, [](Store& store) { (void)store.flush(); }); ++unlock) {
    ASSERT_LT(unlock, 100);
  }
  EXPECT_GT(untold_, 0);
}

TEST_F(UntoldRemovalTest, is_told_when_nobody_writes) {
  const auto wait = [](Store& store) {
    const std::uint64_t removals = store.removals();
    for (int i = 0; i < 1000 && store.removals() == removals; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  ASSERT_TRUE(try_kill(1, wait));
}

class CrashTest : public testing::StoreTest, public ::testing::WithParamInterface<Fault> {
 protected:
  std::string cache() const { return directory_ / "cache"; }

  // The life of a child; returns the number of calls that could be its last.
  std::int64_t live(std::int64_t last_call, const Pipe& promises) {
    testing::FaultFileSystem files(fs::posix_file_system());
    files.faults().fail_at(last_call, GetParam(), false, testing::calls_that_can(GetParam()));
    Ledger ledger;
    ledger.tell([&](Ledger::Event event, const std::string& name, const std::string& value) {
      tell(promises, event, name, value);
    });
    StoreOptions options;
    options.directory = cache();
    StoreLife(files, options, ledger, [](const std::string&, const std::string&) {}).run();
    return files.faults().calls();
  }

  std::int64_t count_calls() {
    Pipe counted;
    ChildProcess child([&] {
      Pipe unread;
      std::thread drain([&] {
        Ledger ignored;
        listen(unread, ignored);
      });
      counted.write(live(0, unread));
      unread.close_writing();
      drain.join();
      return 0;
    });
    counted.close_writing();
    std::int64_t calls = 0;
    EXPECT_TRUE(counted.read(calls));
    EXPECT_EQ(child.wait(), 0);
    std::filesystem::remove_all(cache());
    return calls;
  }

  void expect_whole(const Ledger& ledger) {
    testing::FaultFileSystem files(fs::posix_file_system());
    StoreOptions options;
    options.directory = cache();
    for (const bool is_rebuilt : {false, true}) {
      if (is_rebuilt) std::filesystem::remove(cache() + "/index.sqlite");
      auto store = testing::open_store(options, files);
      ASSERT_NE(store, nullptr);
      testing::expect_clean(files, cache());
      StoreLife::read(*store, ledger, [&](const std::string& name, const std::string& found) {
        // A broken entry is a miss, where a miss is allowed.
        EXPECT_TRUE(ledger.allows(name, found.front() == '<' ? Ledger::kMissing : found))
            << "found for '" << name << "': " << found.substr(0, 80)
            << (is_rebuilt ? " (rebuilt)" : "") << "; may be:" << ledger.expected(name);
      });
      EXPECT_TRUE(testing::put(*store, StoreLife::context(), "afterwards", "value").is_ok());
      EXPECT_TRUE(store->flush().is_ok());
    }
  }

  const testing::CapturedLog quiet_;
};

TEST_P(CrashTest, leaves_a_directory_that_opens_with_all_that_was_promised) {
  const std::int64_t calls = count_calls();
  ASSERT_GT(calls, 10);
  for (const std::int64_t last : testing::calls_that_fail(calls, kCrashesSampled)) {
    SCOPED_TRACE("killed at call " + std::to_string(last));
    Ledger ledger;
    Pipe promises;
    ChildProcess child([&] {
      (void)live(last, promises);
      return 0;  // there were fewer calls this time
    });
    promises.close_writing();
    listen(promises, ledger);
    (void)child.wait();
    if (std::filesystem::exists(cache())) expect_whole(ledger);
    std::filesystem::remove_all(cache());
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, CrashTest, ::testing::Values(Fault::kKill, Fault::kKillHalfway),
                         [](const auto& tested) {
                           return std::string(testing::name_of(tested.param));
                         });

// Nothing but the background thread of the child can commit here. It has longer than it promises,
// as the machine may be busy.
TEST_F(StoreAfterAWhileTest, keeps_what_was_put_a_while_before_a_kill) {
  Pipe is_put;
  ChildProcess child([&] {
    auto store = testing::open_store(directory_.path());
    if (!testing::put(*store, context_, "key", "value").is_ok()) return 1;
    is_put.write('p');
    std::this_thread::sleep_for(std::chrono::minutes(2));
    return 2;
  });
  is_put.close_writing();
  char byte = 0;
  ASSERT_TRUE(is_put.read(byte));
  {
    StoreOptions reading;
    reading.directory = directory_.path();
    reading.writable = false;
    const auto reader = testing::open_store(reading);
    EXPECT_TRUE(
        testing::eventually([&] { return testing::get(*reader, context_, "key") == "value"; },
                            std::chrono::seconds(30)));
  }
  child.kill();
  ASSERT_EQ(child.wait(), -1);
  EXPECT_EQ(testing::get(*testing::open_store(directory_.path()), context_, "key"), "value");
}

}  // namespace
}  // namespace modcache::store
