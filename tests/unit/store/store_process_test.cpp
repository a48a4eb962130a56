// SPDX-License-Identifier: Apache-2.0
//
// Several processes on one directory: forked, working together, and killed.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store/verify/verify.h"
#include "support/child_process.h"
#include "support/store_fixture.h"

#if defined(__SANITIZE_THREAD__)
// Children open stores, and with them threads, on purpose.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "die_after_fork=0";
}
#endif

namespace modcache::store {
namespace {

using ::testing::AnyOf;
using testing::ChildProcess;
using testing::get;
using testing::open_store;
using testing::Pipe;
using testing::put;

std::string process_value(int i) {
  return std::string(std::size_t{7919} * static_cast<unsigned>(i) % 20000,
                     static_cast<char>('a' + i % 26)) +
         std::to_string(i);
}

class StoreProcessTest : public testing::StoreTest {
 protected:
  // For a child: opens its own store, or exits with a failure.
  std::unique_ptr<Store> open_or_exit() {
    StoreOptions options;
    options.directory = directory_.path();
    options.patience_ms = 20000;  // the machine may be busy; what is tested is not speed
    options.on_write_error = [](const Status&, std::int64_t) { ::_exit(90); };
    auto store = Store::open(fs::posix_file_system(), std::move(options));
    if (!store.is_ok()) ::_exit(91);
    return std::move(store).value();
  }
};

#if MODCACHE_CAN_FORK_WITH_THREADS

TEST_F(StoreProcessTest, lets_children_work_while_the_parent_goes_on) {
  auto store = open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "parent", "from the parent").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  ASSERT_EQ(get(*store, context_, "parent"), "from the parent");
  std::atomic<bool> is_over{false};
  std::atomic<int> written{0};
  std::thread writer([&] {
    while (!is_over) {
      const std::string key = "w" + std::to_string(written);
      ASSERT_TRUE(put(*store, context_, key, key).is_ok());
      ASSERT_EQ(get(*store, context_, key), key);
      ASSERT_EQ(get(*store, context_, "parent"), "from the parent");
      ++written;
    }
  });
  constexpr int kChildren = 20;
  for (int i = 0; i < kChildren; ++i) {
    ChildProcess child([&] {
      auto own = open_or_exit();
      if (get(*own, context_, "parent") != "from the parent") return 1;
      if (!put(*own, context_, "child" + std::to_string(i), "from a child").is_ok()) return 2;
      if (!own->flush().is_ok()) return 3;
      return 0;
    });
    EXPECT_EQ(child.wait(), 0);
    EXPECT_EQ(get(*store, context_, "child" + std::to_string(i)), "from a child");
  }
  is_over = true;
  writer.join();
  EXPECT_TRUE(store->flush().is_ok());
  EXPECT_EQ(store->totals().value().entries, 1 + kChildren + written);
}

// SQLite counts locks per process, so inherited counts would be wrong.
TEST_F(StoreProcessTest, keeps_a_childs_store_whole_when_the_parents_closes) {
  auto store = open_store(directory_.path());
  ASSERT_TRUE(put(*store, context_, "parent", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  Pipe to_child;
  Pipe to_parent;
  ChildProcess child([&] {
    to_child.close_writing();
    auto own = open_or_exit();
    if (!put(*own, context_, "before", "value").is_ok() || !own->flush().is_ok()) return 1;
    to_parent.write('r');
    char byte = 0;
    (void)to_child.read(byte);  // until the parent's store is closed
    if (get(*own, context_, "before") != "value") return 2;
    if (!put(*own, context_, "after", "value").is_ok() || !own->flush().is_ok()) return 3;
    return get(*own, context_, "parent") == "value" ? 0 : 4;
  });
  to_parent.close_writing();
  char byte = 0;
  ASSERT_TRUE(to_parent.read(byte));
  store = nullptr;
  auto next = open_store(directory_.path());
  EXPECT_EQ(get(*next, context_, "before"), "value");
  next = nullptr;
  to_child.close_writing();
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(get(*open_store(directory_.path()), context_, "after"), "value");
}

#endif  // MODCACHE_CAN_FORK_WITH_THREADS

TEST_F(StoreProcessTest, clears_what_another_process_has_put_but_not_committed) {
  Pipe to_child;
  Pipe to_parent;
  ChildProcess child([&] {
    to_child.close_writing();
    auto own = open_or_exit();
    char byte = 0;
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 50; ++i) {
        if (!put(*own, context_, std::to_string(i), "x").is_ok()) return 1;
      }
      to_parent.write('p');
      if (!to_child.read(byte)) return 2;  // the parent has cleared
      for (int i = 0; i < 50; ++i) {
        if (get(*own, context_, std::to_string(i)) != "<missing>") return 3;
      }
      if (!own->flush().is_ok()) return 4;
      if (own->totals().value().entries != 0) return 5;
    }
    return 0;
  });
  to_parent.close_writing();
  auto store = open_store(directory_.path());
  char byte = 0;
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(to_parent.read(byte));
    ASSERT_TRUE(store->clear({}).is_ok());
    to_child.write('c');
  }
  EXPECT_EQ(child.wait(), 0);
}

// An entry that was put before a clear may be written after it, when nothing else is left, or was
// ever there.
TEST_F(StoreProcessTest, brings_nothing_back_that_was_put_before_a_clear_and_written_after_it) {
  for (const bool has_segment : {false, true}) {
    ChildProcess child([&] {
      auto own = open_or_exit();
      if (has_segment && !own->clear({"another scope", "", 0}).is_ok()) return 1;
      if (!put(*own, context_, "late", "value").is_ok()) return 2;
      ::raise(SIGSTOP);  // before it is written
      return own->flush().is_ok() ? 0 : 3;
    });
    child.wait_until_stopped();
    {
      auto store = open_store(directory_.path());
      ASSERT_TRUE(store->clear({"", "la", 0}).is_ok());
      ASSERT_TRUE(store->clear({"", "other", 0}).is_ok());
      ASSERT_TRUE(store->evict(0).is_ok());
      child.go_on();
      EXPECT_EQ(child.wait(), 0);
      EXPECT_EQ(get(*store, context_, "late"), "<missing>");
    }
    VerifyOptions options;
    options.directory = directory_.path();
    const auto verification = verify_directory(fs::posix_file_system(), options);
    for (const Finding& finding : verification.value().findings) {
      EXPECT_FALSE(finding.is_damage) << finding.what;
    }
    std::filesystem::remove(directory_ / "index.sqlite");
    EXPECT_EQ(get(*open_store(directory_.path()), context_, "late"), "<missing>");
  }
}

TEST_F(StoreProcessTest, gives_two_writers_and_two_readers_only_right_values_and_loses_nothing) {
  constexpr int kKeys = 300;
  open_or_exit();  // so that readers find a directory
  const auto write_all = [&](unsigned seed) {
    auto own = open_or_exit();
    std::vector<int> order(kKeys);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const int i : order) {
      if (!put(*own, context_, std::to_string(i), process_value(i)).is_ok()) return 1;
      if (get(*own, context_, std::to_string(i)) != process_value(i)) return 2;
    }
    return own->flush().is_ok() ? 0 : 3;
  };
  const auto read_all = [&](bool is_done) {
    auto own = open_or_exit();
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kKeys; ++i) {
        const std::string value = get(*own, context_, std::to_string(i));
        if (value != process_value(i) && (is_done || value != "<missing>")) return 1;
      }
    }
    return 0;
  };
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (const unsigned seed : {1u, 2u}) {
    children.push_back(std::make_unique<ChildProcess>([&] { return write_all(seed); }));
    children.push_back(std::make_unique<ChildProcess>([&] { return read_all(false); }));
  }
  for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(read_all(true), 0);
  std::filesystem::remove(directory_ / "index.sqlite");
  EXPECT_EQ(read_all(true), 0);
}

class StoreKillTest : public StoreProcessTest {
 protected:
  // Puts numbered entries from `first` on, and reports the last entry that each flush confirmed.
  int write_until_killed(int first, const Pipe& confirmed) {
    auto own = open_or_exit();
    for (int i = first;; ++i) {
      if (!put(*own, context_, std::to_string(i), process_value(i)).is_ok()) return 1;
      if (i % 16 != 0) continue;
      if (!own->flush().is_ok()) return 2;
      confirmed.write(i + 1);
    }
  }
  void expect_right(int begin, int end, bool must_be_there) {
    auto store = open_store(directory_.path());
    ASSERT_NE(store, nullptr);
    for (int i = begin; i < end; ++i) {
      const std::string value = get(*store, context_, std::to_string(i));
      if (must_be_there) {
        EXPECT_EQ(value, process_value(i)) << i;
      } else {
        EXPECT_THAT(value, AnyOf(process_value(i), "<missing>")) << i;
      }
    }
  }
};

TEST_F(StoreKillTest, keeps_what_flush_confirmed_through_kills_at_any_instant) {
  constexpr int kRounds = 50;
  constexpr int kKeysPerRound = 100000;
  std::mt19937 random(7);
  std::vector<int> ends;
  int killed_while_writing = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int first = round * kKeysPerRound;
    Pipe confirmed;
    ChildProcess child([&] { return write_until_killed(first, confirmed); });
    confirmed.close_writing();
    // Some rounds die before their first flush, perhaps while they open the directory.
    const bool is_early = round % 5 == 0;
    int end = first;
    for (int flushes = is_early ? 0 : 1 + static_cast<int>(random() % 4); flushes > 0; --flushes) {
      ASSERT_TRUE(confirmed.read(end));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (is_early ? 40000 : 8000)));
    child.kill();
    ASSERT_EQ(child.wait(), -1) << "it was to be killed, and left by itself";
    if (!is_early) ++killed_while_writing;
    while (confirmed.read(end)) {
    }
    expect_right(first, end, true);
    expect_right(end, end + 40, false);
    ends.push_back(end);
  }
  EXPECT_GE(killed_while_writing, 20);
  for (int lost = 0; lost < 2; ++lost) {
    auto store = open_store(directory_.path());
    for (int round = 0; round < kRounds; ++round) {
      const int first = round * kKeysPerRound;
      for (int i = first; i < ends[static_cast<std::size_t>(round)]; ++i) {
        EXPECT_EQ(get(*store, context_, std::to_string(i)), process_value(i)) << i;
      }
    }
    std::filesystem::remove(directory_ / "index.sqlite");
  }
}

}  // namespace
}  // namespace modcache::store
