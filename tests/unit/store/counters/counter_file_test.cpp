// SPDX-License-Identifier: Apache-2.0
#include "store/counters/counter_file.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "fs/posix_file_system.h"
#include "support/temporary_directory.h"

namespace modcache::store {
namespace {

constexpr std::int32_t kToday = 20'000;

class CounterFileTest : public ::testing::Test {
 protected:
  CounterFileTest() {
    EXPECT_TRUE(fs::posix_file_system().make_directories(directory_.path()).is_ok());
  }
  std::string path() const {
    const auto names = fs::posix_file_system().list(directory_.counters_path()).value();
    EXPECT_EQ(names.size(), 1U);
    return directory_.counters_path() + '/' + names.front();
  }
  Result<ReadCounters> read() const {
    const auto file = fs::posix_file_system().open(path(), fs::OpenMode::kRead);
    EXPECT_TRUE(file.is_ok());
    return read_counter_file(*file.value());
  }
  void overwrite(std::size_t offset, const std::string& bytes) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }

  const testing::TemporaryDirectory place_;
  const Directory directory_{fs::posix_file_system(), place_ / "cache"};
};

TEST_F(CounterFileTest, what_is_counted_is_in_the_file_at_once) {
  auto file = CounterFile::create(directory_).value();
  (*file->slot_of("encoder", kToday))[3] += 5;
  (*file->slot_of("encoder", kToday))[3] += 2;
  (*file->slot_of("other", kToday))[0] += 1;
  (*file->slot_of("encoder", kToday + 1))[3] += 9;
  const auto days = read().value().days;
  ASSERT_EQ(days.size(), 3U);
  EXPECT_EQ(days[0].scope, "encoder");
  EXPECT_EQ(days[0].day, kToday);
  EXPECT_EQ(days[0].counts[3], 7);
  EXPECT_EQ(days[1].scope, "other");
  EXPECT_EQ(days[2].day, kToday + 1);
  EXPECT_EQ(days[2].counts[3], 9);
}

TEST_F(CounterFileTest, long_scopes_that_begin_alike_have_slots_of_their_own) {
  auto file = CounterFile::create(directory_).value();
  const std::string beginning(kMostScopeBytes, 'x');
  EXPECT_NE(file->slot_of(beginning + "1", kToday), file->slot_of(beginning + "2", kToday));
  EXPECT_EQ(file->slot_of(beginning + "1", kToday), file->slot_of(beginning + "1", kToday));
  EXPECT_EQ(read().value().days[0].scope, beginning);
}

TEST_F(CounterFileTest, has_no_slot_once_all_are_taken) {
  auto file = CounterFile::create(directory_).value();
  for (std::size_t i = 0; i < kCounterSlots; ++i) {
    EXPECT_NE(file->slot_of(std::to_string(i), kToday), nullptr);
  }
  EXPECT_EQ(file->slot_of("one more", kToday), nullptr);
  EXPECT_NE(file->slot_of("0", kToday), nullptr);
}

TEST_F(CounterFileTest, is_held_as_long_as_it_is_in_use) {
  auto file = CounterFile::create(directory_).value();
  auto other = fs::posix_file_system().open(path(), fs::OpenMode::kReadWrite).value();
  EXPECT_FALSE(other->try_hold(fs::File::Hold::kExclusive).value());
  file = nullptr;
  EXPECT_TRUE(other->try_hold(fs::File::Hold::kExclusive).value());
}

TEST_F(CounterFileTest, a_damaged_slot_is_left_out) {
  auto file = CounterFile::create(directory_).value();
  (*file->slot_of("first", kToday))[0] += 1;
  (*file->slot_of("second", kToday))[0] += 2;
  overwrite(kCounterSlotBytes + 12, std::string("\xff\xff\xff\xff", 4));
  const auto days = read().value().days;
  ASSERT_EQ(days.size(), 1U);
  EXPECT_EQ(days[0].scope, "second");
}

TEST_F(CounterFileTest, a_file_that_is_none_or_too_short_is_corrupt) {
  auto file = CounterFile::create(directory_).value();
  overwrite(0, "none of ours");
  EXPECT_EQ(read().status().code(), StatusCode::kCorruption);
  const std::string short_path = place_ / "short";
  std::ofstream(short_path) << "modcount";
  auto opened = fs::posix_file_system().open(short_path, fs::OpenMode::kRead).value();
  EXPECT_EQ(read_counter_file(*opened).status().code(), StatusCode::kCorruption);
}

TEST_F(CounterFileTest, knows_whether_it_still_stands_in_its_directory) {
  auto file = CounterFile::create(directory_).value();
  EXPECT_TRUE(file->is_in_place());
  ASSERT_TRUE(fs::posix_file_system().remove(path()).is_ok());
  EXPECT_FALSE(file->is_in_place());
}

TEST(CounterFileNameTest, is_told_from_other_names) {
  EXPECT_EQ(counter_file_name(0xc0ffee), "0000000000c0ffee.counts");
  EXPECT_TRUE(is_counter_file_name("0000000000c0ffee.counts"));
  for (const char* const name : {"totals", "", ".counts", "c0ffee.counts",
                                 "0000000000c0ffee.counts.new", "0000000000C0FFEE.counts"}) {
    EXPECT_FALSE(is_counter_file_name(name)) << name;
  }
}

}  // namespace
}  // namespace modcache::store
