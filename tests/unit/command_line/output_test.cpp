// SPDX-License-Identifier: Apache-2.0
#include "command_line/output.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "support/captured_output.h"

namespace modcache::command_line {
namespace {

TEST(OutputTest, data_and_messages_go_apart) {
  testing::CapturedOutput captured;
  captured.output().write("data\n");
  captured.output().say("a message");
  EXPECT_TRUE(captured.output().finish().is_ok());
  EXPECT_EQ(captured.data(), "data\n");
  EXPECT_EQ(captured.messages(), "modcache: a message\n");
}

TEST(OutputTest, progress_is_for_terminals_alone) {
  testing::CapturedOutput captured;
  captured.output().show_progress("12 %");
  EXPECT_TRUE(captured.output().finish().is_ok());
  EXPECT_EQ(captured.messages(), "");
}

TEST(OutputTest, a_full_disk_is_told) {
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Output output(full, stderr);
  output.write("data");
  const Status status = output.finish();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("No space left"), std::string::npos);
  EXPECT_TRUE(output.is_closed());
  std::fclose(full);
}

}  // namespace
}  // namespace modcache::command_line
