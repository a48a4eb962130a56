// SPDX-License-Identifier: Apache-2.0
//
// How arguments reach a command. tests/command_line tests the commands themselves.
#include "command_line/program.h"

#include <gmock/gmock.h>

#include <optional>

#include "support/captured_output.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Given {
  std::vector<std::string> words;
  std::optional<std::string> scope;
  bool fix = false;
  int runs = 0;
};

class EchoCommand final : public Command {
 public:
  explicit EchoCommand(Given& given) : given_(given) {}
  void declare(Arguments& arguments) override {
    arguments.describe({"echo", "[DIR] KEY", "Says what it was given", "Details."});
    arguments.words(1, 2, given_.words);
    arguments.option("--scope", "S", "A scope", given_.scope);
    arguments.flag("--fix", "Repair it", given_.fix);
  }
  Result<ExitCode> run(Output& output) override {
    ++given_.runs;
    if (given_.words[0] == "fail") return Status::io_error("it failed");
    Report report = this->report(output);
    report.add("words", "words", Cell::count(static_cast<std::int64_t>(given_.words.size())));
    report.finish();
    return given_.words[0] == "damaged" ? ExitCode::kFindings : ExitCode::kSuccess;
  }

 private:
  Given& given_;
};

class ProgramTest : public ::testing::Test {
 protected:
  int run(const std::vector<std::string>& arguments) {
    std::vector<CommandPtr> commands;
    commands.push_back(std::make_unique<EchoCommand>(given_));
    return Program(std::move(commands)).run(arguments, captured_.output());
  }

  Given given_;
  testing::CapturedOutput captured_;
};

TEST_F(ProgramTest, words_options_and_flags_reach_the_command) {
  EXPECT_EQ(run({"echo", "dir", "--scope", "s", "key", "--fix"}), 0);
  EXPECT_THAT(given_.words, ElementsAre("dir", "key"));
  EXPECT_EQ(given_.scope, "s");
  EXPECT_TRUE(given_.fix);
  EXPECT_EQ(captured_.data(), "words  2\n");
}

TEST_F(ProgramTest, words_are_taken_as_they_are) {
  EXPECT_EQ(run({"echo", "[a,b]", "{}"}), 0);
  EXPECT_THAT(given_.words, ElementsAre("[a,b]", "{}"));
}

TEST_F(ProgramTest, after_two_dashes_a_word_may_look_like_an_option) {
  EXPECT_EQ(run({"echo", "--", "dir", "--fix"}), 0);
  EXPECT_THAT(given_.words, ElementsAre("dir", "--fix"));
  EXPECT_FALSE(given_.fix);
}

TEST_F(ProgramTest, json_is_an_option_of_every_command) {
  EXPECT_EQ(run({"echo", "key", "--json"}), 0);
  EXPECT_EQ(captured_.data(), "{\n \"words\": 1\n}\n");
}

TEST_F(ProgramTest, findings_are_1_and_need_no_message) {
  EXPECT_EQ(run({"echo", "damaged"}), 1);
  EXPECT_EQ(captured_.messages(), "");
}

TEST_F(ProgramTest, a_failure_is_said_and_is_2) {
  EXPECT_EQ(run({"echo", "fail"}), 2);
  EXPECT_EQ(captured_.messages(), "modcache: it failed\n");
  EXPECT_EQ(captured_.data(), "");
}

TEST_F(ProgramTest, misuse_says_what_is_valid_and_runs_nothing) {
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"ehco"}), 2);
  EXPECT_THAT(captured_.messages(), HasSubstr("no command 'ehco'; valid are: echo"));
  EXPECT_EQ(run({"--no-such-option"}), 2);
  EXPECT_EQ(run({"echo"}), 2);
  EXPECT_THAT(captured_.messages(), HasSubstr("modcache echo takes [DIR] KEY"));
  EXPECT_EQ(run({"echo", "a", "--scopes", "s"}), 2);
  EXPECT_THAT(captured_.messages(), HasSubstr("--scopes"));
  EXPECT_EQ(run({"echo", "a", "--scope"}), 2);
  EXPECT_EQ(run({"echo", "a", "b", "too much"}), 2);
  EXPECT_THAT(captured_.messages(), HasSubstr("too much"));
  EXPECT_THAT(captured_.messages(), HasSubstr("modcache echo --help"));
  EXPECT_EQ(given_.runs, 0);
  EXPECT_EQ(captured_.data(), "");
}

TEST_F(ProgramTest, help_and_version_are_data) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(captured_.data(), HasSubstr("echo"));
  EXPECT_EQ(run({"echo", "--help"}), 0);
  EXPECT_THAT(captured_.data(), HasSubstr("Usage: modcache echo [DIR] KEY [OPTIONS]"));
  EXPECT_THAT(captured_.data(), HasSubstr("--scope S"));
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_EQ(run({"echo", "--version"}), 0);
  EXPECT_THAT(captured_.data(), HasSubstr("modcache " MODCACHE_VERSION "\n"));
  EXPECT_THAT(captured_.messages(), IsEmpty());
  EXPECT_EQ(given_.runs, 0);
}

TEST(DirectoryTest, a_directory_is_what_was_given_or_what_the_environment_says) {
  ::setenv("MODCACHE_DIR", "/from/environment", 1);
  EXPECT_EQ(directory_before({"/given/"}, 0).value(), "/given");
  EXPECT_EQ(directory_before({}, 0).value(), "/from/environment");
  EXPECT_EQ(directory_before({"key"}, 1).value(), "/from/environment");
  EXPECT_EQ(directory_before({"/a//b/../c", "key"}, 1).value(), "/a/c");
  EXPECT_FALSE(directory_before({""}, 0).is_ok());
  ::unsetenv("MODCACHE_DIR");
  const Status status = directory_before({}, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("MODCACHE_DIR is not set"));
}

}  // namespace
}  // namespace modcache::command_line
