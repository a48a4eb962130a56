// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace modcache {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    forget_logged_causes();
    set_log_sink([this](LogLevel, const std::string& message) { messages_.push_back(message); });
  }
  ~LogTest() override {
    set_log_sink({});
    set_log_level(LogLevel::kWarning);
  }
  std::vector<std::string> messages_;
};

TEST_F(LogTest, passes_on_what_the_level_lets_through) {
  log(LogLevel::kError, "level-error", "error");
  log(LogLevel::kWarning, "level-warning", "warning");
  log(LogLevel::kInfo, "level-info", "info");
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "level-off", "silenced");
  EXPECT_THAT(messages_, ::testing::ElementsAre("error", "warning"));
}

TEST_F(LogTest, says_one_message_per_cause) {
  for (int i = 0; i < 100; ++i) {
    log(LogLevel::kWarning, "cause-a", "a" + std::to_string(i));
    log_once(LogLevel::kWarning, "cause-b", "b" + std::to_string(i));
  }
  EXPECT_THAT(messages_, ::testing::ElementsAre("a0", "b0"));
}

TEST_F(LogTest, says_it_once_whoever_listens_until_the_causes_are_forgotten) {
  log_once(LogLevel::kWarning, "cause-c", "c");
  std::vector<std::string> heard;
  set_log_sink([&](LogLevel, const std::string& message) { heard.push_back(message); });
  log_once(LogLevel::kWarning, "cause-c", "c");
  EXPECT_TRUE(heard.empty());
  forget_logged_causes();
  log_once(LogLevel::kWarning, "cause-c", "c");
  EXPECT_THAT(heard, ::testing::ElementsAre("c"));
}

TEST_F(LogTest, forgets_causes_rather_than_growing_without_bound) {
  for (int i = 0; i < 10000; ++i) log(LogLevel::kWarning, "many-" + std::to_string(i), "x");
  EXPECT_EQ(messages_.size(), 10000u);
}

}  // namespace
}  // namespace modcache
