// SPDX-License-Identifier: Apache-2.0
//
// What a backend does while somebody stops, kills and starts its server again: for as many seconds
// as MODCACHE_TEST_REMOTE_FAULT_S says, after which the server has to be well. Skipped without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "remote/backend.h"
#include "unit/backends/test_backend.h"

namespace modcache::remote {
namespace {

// Of a call, beyond its time-outs: machines are busy.
constexpr std::int64_t kSlackMs = 2'000;
constexpr std::int64_t kTimeoutsOfACall = 4;

std::int64_t number_from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtol(text, nullptr, 10) : 0;
}

class BackendFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    lasts_ms_ = number_from_environment("MODCACHE_TEST_REMOTE_FAULT_S") * 1'000;
    if (lasts_ms_ == 0) GTEST_SKIP() << "MODCACHE_TEST_REMOTE_FAULT_S is not set";
    timeout_ms_ = number_from_environment("MODCACHE_TEST_REMOTE_TIMEOUT_MS");
    backend_ = testing::make_test_backend();
    ASSERT_NE(backend_, nullptr);
  }
  static std::string value_of(const std::string& name) {
    return name + std::string(name.size() % 7 == 0 ? 400'000 : 2'000, name.back());
  }
  template <typename Call>
  Status timed(Call&& call) {
    const std::int64_t begun_ms = steady_now_ms();
    const Status status = call();
    longest_ms_ = std::max(longest_ms_, steady_now_ms() - begun_ms);
    ++(status.is_ok() ? good_calls_ : bad_calls_);
    if (!status.is_ok()) ++failures_[status.message()];
    return status;
  }
  void put(const std::vector<std::string>& names) {
    std::vector<NamedValue> values;
    for (const std::string& name : names) values.push_back({name, value_of(name)});
    std::vector<bool> are_stored;
    (void)timed([&] { return backend_->put_all(values, 0, are_stored); });
    for (std::size_t i = 0; i < are_stored.size(); ++i) {
      if (are_stored[i]) stored_.push_back(names[i]);
    }
  }
  // Returns how many are there.
  std::size_t check(const std::vector<std::string>& names) {
    std::vector<SharedBytes> values;
    (void)timed([&] { return backend_->get_all(names, values); });
    std::size_t there = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].owner == nullptr) continue;
      ++there;
      EXPECT_TRUE(values[i].view() == value_of(names[i])) << names[i];
    }
    return there;
  }

  std::unique_ptr<Backend> backend_;
  std::vector<std::string> stored_;
  std::map<std::string, int> failures_;
  std::int64_t lasts_ms_ = 0;
  std::int64_t timeout_ms_ = 0;
  std::int64_t longest_ms_ = 0;
  int good_calls_ = 0;
  int bad_calls_ = 0;
};

TEST_F(BackendFaultTest, calls_end_in_time_and_no_value_is_wrong_whatever_the_server_does) {
  const std::string folder = "fault-" + std::to_string(random_number()) + "/";
  const std::int64_t until_ms = steady_now_ms() + lasts_ms_;
  for (int round = 0; steady_now_ms() < until_ms; ++round) {
    std::vector<std::string> names;
    for (int i = 0; i < 20; ++i) {
      names.push_back(folder + std::to_string(round) + ":" + std::string(1 + i % 8, 'n') +
                      std::to_string(i));
    }
    put(names);
    check(names);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::cout << "good calls " << good_calls_ << ", failed ones " << bad_calls_ << ", longest "
            << longest_ms_ << " ms\n";
  for (const auto& [message, count] : failures_) std::cout << count << " x " << message << "\n";
  EXPECT_GT(good_calls_, 0);
  EXPECT_GT(bad_calls_, 0) << "nothing was done to the server";
  EXPECT_LE(longest_ms_, kTimeoutsOfACall * timeout_ms_ + kSlackMs);
  // Whatever was said to be stored is there, now that the server is well.
  for (std::size_t first = 0; first < stored_.size(); first += 500) {
    const std::vector<std::string> some(
        stored_.begin() + static_cast<std::ptrdiff_t>(first),
        stored_.begin() + static_cast<std::ptrdiff_t>(std::min(stored_.size(), first + 500)));
    EXPECT_EQ(check(some), some.size());
  }
}

}  // namespace
}  // namespace modcache::remote
