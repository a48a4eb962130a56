// SPDX-License-Identifier: Apache-2.0
#include "command_line/diagnosis.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "support/temporary_directory.h"

namespace modcache::command_line {
namespace {

using State = Finding::State;

constexpr std::int64_t kGigabyte = 1'000'000'000;
constexpr std::int64_t kHourUs = 3'600'000'000;
constexpr std::int64_t kNowUs = 1'700'000'000'000'000;

void touch(const std::string& path, std::int64_t age_s = 0) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "x";
  namespace files = std::filesystem;
  files::last_write_time(path, files::file_time_type::clock::now() - std::chrono::seconds(age_s));
}

DiskFiles files_in(const std::string& directory) { return DiskFiles::list(directory).value(); }

TEST(DiagnosisTest, the_installation_is_told_and_never_a_problem) {
  Installation installation;
  EXPECT_EQ(judge_installation(installation).state, State::kNote) << "a program by itself";
  installation.libraries = {{"/lib/libmodcache.so", "2.13"}};
  EXPECT_EQ(judge_installation(installation).found, "libmodcache.so for torch 2.13");
  installation.torch = "2.13";
  EXPECT_EQ(judge_installation(installation).found,
            "libmodcache.so for torch 2.13, no compiled part");
  installation.pythons = {"3.11", "3.13"};
  EXPECT_EQ(judge_installation(installation).found,
            "libmodcache.so for torch 2.13, compiled part for Python 3.11, 3.13");
  installation.python = "3.13";
  EXPECT_EQ(judge_installation(installation).state, State::kOk);
  installation.python = "3.12";
  EXPECT_EQ(judge_installation(installation).state, State::kNote);
  EXPECT_THAT(judge_installation(installation).found, ::testing::EndsWith("this is Python 3.12"));
  installation.torch = "2.16";
  EXPECT_EQ(judge_installation(installation).state, State::kNote);
}

TEST(DiagnosisTest, a_network_file_system_is_a_problem) {
  EXPECT_EQ(judge_file_system(0x6969).state, State::kProblem);
  EXPECT_EQ(judge_file_system(0xff534d42).state, State::kProblem);
  EXPECT_FALSE(judge_file_system(0x6969).cure.empty());
  EXPECT_EQ(judge_file_system(0x65735546).state, State::kNote) << "FUSE";
  EXPECT_EQ(judge_file_system(0x01021994).state, State::kNote) << "tmpfs";
  EXPECT_EQ(judge_file_system(0xef53).state, State::kOk) << "ext4";
  EXPECT_EQ(judge_file_system(0x12345678).state, State::kOk) << "not known";
}

TEST(DiagnosisTest, space_is_judged_against_the_budget) {
  const auto state = [](std::int64_t free, std::int64_t budget, std::int64_t used) {
    return judge_free_space(free, 1'000'000, budget, used).state;
  };
  EXPECT_EQ(state(200 * kGigabyte, 100 * kGigabyte, 0), State::kOk);
  EXPECT_EQ(state(90 * kGigabyte, 100 * kGigabyte, 10 * kGigabyte), State::kOk);
  EXPECT_EQ(state(80 * kGigabyte, 100 * kGigabyte, 10 * kGigabyte), State::kNote);
  EXPECT_EQ(state(200 * kGigabyte, 1 * kGigabyte, 2 * kGigabyte), State::kNote);
  EXPECT_EQ(state(kGigabyte / 10, kGigabyte, kGigabyte), State::kProblem);
  EXPECT_EQ(judge_free_space(kGigabyte, 10, 0, 0).state, State::kProblem) << "no more files";
}

TEST(DiagnosisTest, limits_that_the_store_would_meet_are_problems) {
  EXPECT_EQ(judge_limits(20'000, 65'530).state, State::kOk);
  EXPECT_EQ(judge_limits(-1, -1).state, State::kOk);
  EXPECT_EQ(judge_limits(256, 65'530).state, State::kProblem);
  EXPECT_EQ(judge_limits(20'000, 1'000).state, State::kProblem);
}

TEST(DiagnosisTest, files_and_entries_of_the_future_are_a_problem) {
  const testing::TemporaryDirectory place;
  touch(place / "index.sqlite");
  const DiskFiles files = files_in(place.path());
  EXPECT_EQ(check_clock(files, 0, now_us()).state, State::kOk);
  EXPECT_EQ(check_clock(files, now_us() + kHourUs, now_us()).state, State::kProblem);
  const Finding early = check_clock(files, 0, kNowUs);
  EXPECT_EQ(early.state, State::kProblem);
  EXPECT_NE(early.found.find("index.sqlite"), std::string::npos);
}

TEST(DiagnosisTest, leftover_files_are_named) {
  const testing::TemporaryDirectory place;
  touch(place / "index.sqlite");
  touch(place / "notes/0123.1-1.new");
  touch(place / "policy.state");
  EXPECT_EQ(check_leftovers(files_in(place.path()), now_us()).state, State::kOk) << "in the making";
  touch(place / "index.sqlite.new", 7200);
  Finding finding = check_leftovers(files_in(place.path()), now_us());
  EXPECT_EQ(finding.state, State::kNote);
  EXPECT_NE(finding.found.find("index.sqlite.new"), std::string::npos);
  touch(place / "a stranger");
  finding = check_leftovers(files_in(place.path()), now_us());
  EXPECT_NE(finding.found.find("a stranger"), std::string::npos);
  EXPECT_NE(finding.cure.find("room of the budget"), std::string::npos);
}

TEST(DiagnosisTest, a_missing_database_is_a_problem_with_a_cure) {
  const testing::TemporaryDirectory place;
  const Finding finding = check_database(place.path());
  EXPECT_EQ(finding.state, State::kProblem);
  EXPECT_NE(finding.cure.find("verify"), std::string::npos);
}

TEST(DiagnosisTest, what_everybody_can_write_is_noted) {
  const testing::TemporaryDirectory place;
  EXPECT_EQ(check_permissions(place.path(), files_in(place.path())).state, State::kOk);
  std::filesystem::permissions(place.path(), std::filesystem::perms::all);
  EXPECT_EQ(check_permissions(place.path(), files_in(place.path())).state, State::kNote);
}

TEST(DiagnosisTest, files_are_told_by_what_they_are_for) {
  const testing::TemporaryDirectory place;
  for (const char* name : {"index.sqlite", "index.sqlite-wal", "index.map", "control", "lock",
                           "segments/00c0ffee00c0ffee.seg", "segments/00c0ffee00c0ffef.gone",
                           "segments/x.seg", "notes/0123"}) {
    touch(place / name);
  }
  const DiskFiles files = files_in(place.path());
  EXPECT_EQ(files.total(DiskFile::Kind::kDatabase).count, 2);
  EXPECT_EQ(files.total(DiskFile::Kind::kSegment).count, 1);
  EXPECT_EQ(files.total(DiskFile::Kind::kRetiredSegment).count, 1);
  EXPECT_EQ(files.total(DiskFile::Kind::kUnknown).count, 1);
  EXPECT_EQ(files.total(DiskFile::Kind::kNote).size_bytes, 1);
  EXPECT_EQ(files.size_bytes(), 9);
}

}  // namespace
}  // namespace modcache::command_line
