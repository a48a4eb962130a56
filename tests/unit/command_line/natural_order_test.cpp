// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "command_line/entry_columns.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAreArray;

// Checks that each comes before all behind it, and none before those.
void expect_in_order(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < names.size(); ++j) {
      EXPECT_EQ(comes_before(names[i], names[j]), i < j) << names[i] << " | " << names[j];
    }
  }
}

TEST(NaturalOrderTest, numbers_inside_of_names_count_as_numbers) {
  expect_in_order({"0", "1", "2", "10", "100", "101"});
  expect_in_order({"a/2/x-9", "a/2/x-10", "a/10/x-1", "b"});
  expect_in_order({"", "-1", "1", "1a", "1b", "2", "a", "a1", "aa"});
}

TEST(NaturalOrderTest, numbers_may_be_longer_than_any_integer) {
  const std::string nines(40, '9');
  expect_in_order({"18446744073709551616", nines, "1" + std::string(40, '0')});
}

TEST(NaturalOrderTest, zeros_before_a_number_count_last) {
  expect_in_order({"0", "00", "01", "1", "001a", "01b", "2"});
}

TEST(NaturalOrderTest, bytes_that_are_no_text_have_an_order) {
  expect_in_order({std::string("\0", 1), "a", "\x80", "\xff", "\xff\xff"});
}

TEST(NaturalOrderTest, it_is_an_order) {
  std::mt19937 random(7);
  std::vector<std::string> names;
  for (int i = 0; i < 400; ++i) {
    std::string name;
    for (int length = static_cast<int>(random() % 6); length > 0; --length) {
      name += "0019a\xff/"[random() % 7];
    }
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::sort(names.begin(), names.end(), comes_before);
  expect_in_order(names);
}

}  // namespace
}  // namespace modcache::command_line
