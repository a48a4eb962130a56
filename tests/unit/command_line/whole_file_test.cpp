// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "command_line/changing.h"
#include "support/temporary_directory.h"

namespace modcache::command_line {
namespace {

constexpr char kBeginning[] = "page ";

std::string bytes_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::size_t count_files(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(WholeFileTest, it_makes_a_file_and_replaces_its_own) {
  const testing::TemporaryDirectory place;
  const std::string path = place / "report.html";
  EXPECT_TRUE(write_whole_file(path, "page 1", kBeginning).is_ok());
  EXPECT_TRUE(write_whole_file(path, "page 22", kBeginning).is_ok());
  EXPECT_EQ(bytes_in(path), "page 22");
  EXPECT_EQ(count_files(place.path()), 1U) << "nothing is left over";
}

TEST(WholeFileTest, an_empty_file_is_replaced) {
  const testing::TemporaryDirectory place;
  std::ofstream(place / "new");
  EXPECT_TRUE(write_whole_file(place / "new", "page 1", kBeginning).is_ok());
  EXPECT_EQ(bytes_in(place / "new"), "page 1");
}

TEST(WholeFileTest, anything_else_stays) {
  const testing::TemporaryDirectory place;
  std::ofstream(place / "thesis") << "pages and pages";
  std::filesystem::create_directory(place / "folder");
  std::filesystem::create_symlink(place / "thesis", place / "link");
  for (const char* name : {"thesis", "folder", "link", "folder/", "none/file", ".", "folder/.."}) {
    const Status status = write_whole_file(place / name, "page 1", kBeginning);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
  EXPECT_EQ(bytes_in(place / "thesis"), "pages and pages");
  EXPECT_EQ(count_files(place.path()), 3U);
  EXPECT_EQ(count_files(place / "folder"), 0U);
}

}  // namespace
}  // namespace modcache::command_line
