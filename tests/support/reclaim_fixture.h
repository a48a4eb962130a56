// SPDX-License-Identifier: Apache-2.0
//
// A store with a small budget, and values of which it has room for some two hundred.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "store/directory/directory.h"
#include "support/store_fixture.h"

namespace modcache::testing {

inline constexpr std::uint64_t kBudget = 4 << 20;
inline constexpr std::uint64_t kSegment = kBudget / 16;
inline constexpr std::size_t kPayload = 20000;

class ReclaimTest : public StoreTest {
 protected:
  ReclaimTest() {
    options_.directory = directory_.path();
    options_.disk_budget_bytes = kBudget;
    options_.make_policy = admitting_policy;
    options_.on_evicted = [this](std::int64_t entries) { evicted_ += entries; };
    options_.on_not_kept = [this](std::int64_t entries) { not_kept_ += entries; };
    options_.on_write_error = [this](const Status& status, std::int64_t) {
      ADD_FAILURE() << status.message();
      ++errors_;
    };
  }

  static std::string value_of(int i) {
    return std::to_string(i) + std::string(kPayload, static_cast<char>('a' + i % 26));
  }
  // Puts [begin, end), and looks at the size of the directory now and then.
  void fill(store::Store& store, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      ASSERT_TRUE(put(store, context_, std::to_string(i), value_of(i)).is_ok());
      if (i % 10 != 0) continue;
      ASSERT_TRUE(store.flush().is_ok());
      ASSERT_LE(used_bytes(), kBudget + kSegment) << i;
    }
    ASSERT_TRUE(store.flush().is_ok());
  }
  std::uint64_t used_bytes() {
    return store::Directory(fs::posix_file_system(), directory_.path()).size_bytes().value();
  }
  std::size_t segments() {
    return store::Directory(fs::posix_file_system(), directory_.path()).segments().value().size();
  }
  std::vector<std::uint64_t> retired() {
    return store::Directory(fs::posix_file_system(), directory_.path()).retired_segments().value();
  }
  // How many of [begin, end) are there; none is wrong.
  int count(store::Store& store, int begin, int end) {
    int found = 0;
    for (int i = begin; i < end; ++i) {
      const std::string value = get(store, context_, std::to_string(i));
      if (value == "<missing>") continue;
      EXPECT_EQ(value, value_of(i));
      ++found;
    }
    return found;
  }

  store::StoreOptions options_;
  std::atomic<std::int64_t> evicted_{0};
  std::atomic<std::int64_t> not_kept_{0};
  std::atomic<std::int64_t> errors_{0};
};

}  // namespace modcache::testing
