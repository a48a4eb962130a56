// SPDX-License-Identifier: Apache-2.0
#include "store/counters/totals_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

class TotalsFileTest : public ::testing::Test {
 protected:
  TotalsFileTest() {
    EXPECT_TRUE(fs::posix_file_system().make_directories(directory_.counters_path()).is_ok());
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  const testing::TemporaryDirectory place_;
  const Directory directory_{fs::posix_file_system(), place_ / "cache"};
  const std::string path_ = directory_.counters_path() + "/totals";
};

TotalsFile example() {
  TotalsFile totals;
  totals.since_us = 17;
  totals.was_zeroed = true;
  totals.gathered = {1, 2};
  totals.days = {{"encoder", 20'000, {1, -2}}, {std::string("\0\xff", 2), -1, {}}};
  return totals;
}

TEST_F(TotalsFileTest, what_was_written_is_read) {
  ASSERT_TRUE(write_totals_file(directory_, example()).is_ok());
  const TotalsFile read = read_totals_file(directory_).value();
  EXPECT_EQ(read.since_us, 17);
  EXPECT_TRUE(read.was_zeroed);
  EXPECT_THAT(read.gathered, ::testing::ElementsAre(1, 2));
  ASSERT_EQ(read.days.size(), 2U);
  EXPECT_EQ(read.days[0].scope, "encoder");
  EXPECT_EQ(read.days[0].counts[1], -2);
  EXPECT_EQ(read.days[1].scope, std::string("\0\xff", 2));
  EXPECT_EQ(read.days[1].day, -1);
}

TEST_F(TotalsFileTest, each_replacement_has_another_serial) {
  ASSERT_TRUE(write_totals_file(directory_, example()).is_ok());
  const auto serial = read_totals_file(directory_).value().serial;
  ASSERT_TRUE(write_totals_file(directory_, example()).is_ok());
  EXPECT_NE(read_totals_file(directory_).value().serial, serial);
}

TEST_F(TotalsFileTest, is_empty_where_there_is_none_or_a_damaged_one) {
  EXPECT_TRUE(read_totals_file(directory_).value().days.empty());
  ASSERT_TRUE(write_totals_file(directory_, example()).is_ok());
  const std::string whole = bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_TRUE(read_totals_file(directory_).value().days.empty()) << size;
  }
  for (std::size_t i = sizeof "modcache counters 2"; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    write(damaged);
    EXPECT_TRUE(read_totals_file(directory_).value().days.empty()) << i;
  }
}

TEST_F(TotalsFileTest, one_of_another_version_and_what_is_no_file_are_refused) {
  for (const char* const title : {"modcache counters 1\n", "modcache counters 3\n"}) {
    write(title);
    EXPECT_EQ(read_totals_file(directory_).status().code(), StatusCode::kUnsupportedVersion);
  }
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  EXPECT_EQ(read_totals_file(directory_).status().code(), StatusCode::kForeign);
}

}  // namespace
}  // namespace modcache::store
