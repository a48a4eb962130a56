// SPDX-License-Identifier: Apache-2.0
#include "command_line/installation.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kPackages = "lib/python3.11/site-packages/";

class InstallationTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text = "") {
    const std::filesystem::path path = std::filesystem::canonical(prefix_.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  std::string write_library(const std::string& folder, const std::string& torch) {
    write(folder + "/libmodcache.json", R"({"version": "1.0.0", "torch": ")" + torch + "\"}\n");
    return write(folder + "/libmodcache.so");
  }
  std::string write_library_of_package(const std::string& minor) {
    return write_library(kPackages + ("modcache/lib/torch-" + minor), minor + ".0+cpu");
  }
  void write_torch(const std::string& version) {
    write(std::string(kPackages) + "torch/version.py",
          "from typing import Optional\n\n__version__ = '" + version + "'\ndebug = False\n");
  }
  Installation found() const { return installation_beside(prefix_ / "bin/modcache"); }
  std::string path_for(const std::string& torch) const {
    const auto library = library_for(found(), torch);
    return library.is_ok() ? library.value().path : library.status().message();
  }

  const std::string& prefix_path() const { return prefix_.path(); }

 private:
  testing::TemporaryDirectory prefix_;
};

TEST_F(InstallationTest, a_prefix_has_one_library) {
  const std::string library = write_library("lib", "2.14.1");
  EXPECT_EQ(path_for(""), library);
  EXPECT_EQ(path_for("2.14"), library);
  EXPECT_THAT(path_for("2.13"), HasSubstr("only for torch 2.14"));
}

TEST_F(InstallationTest, a_library_without_facts_is_found) {
  const std::string library = write("lib/libmodcache.so");
  EXPECT_EQ(path_for(""), library);
  EXPECT_EQ(found().libraries.at(0).torch, "");
}

TEST_F(InstallationTest, of_a_package_the_library_for_the_torch_beside_it_is_taken) {
  write_library_of_package("2.13");
  const std::string library = write_library_of_package("2.15");
  write_torch("2.15.0+cu132");
  EXPECT_EQ(path_for(""), library);
  EXPECT_EQ(found().torch, "2.15");
}

TEST_F(InstallationTest, another_can_be_asked_for) {
  const std::string library = write_library_of_package("2.13");
  write_library_of_package("2.15");
  write_torch("2.15.0");
  EXPECT_EQ(path_for("2.13"), library);
}

TEST_F(InstallationTest, a_whole_version_can_be_asked_for_and_what_is_none_is_refused) {
  const std::string library = write_library_of_package("2.13");
  write_library_of_package("2.15");
  EXPECT_EQ(path_for("2.13.0+cu130"), library);
  for (const char* wrong : {"2", "2.", "two", ".13", "2.x", "-2.13"}) {
    const auto refused = library_for(found(), wrong);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST_F(InstallationTest, of_several_pythons_in_a_prefix_one_with_a_torch_is_taken) {
  write_library("lib/python3.10/site-packages/modcache/lib/torch-2.13", "2.13.0");
  const std::string library = write_library_of_package("2.15");
  write_torch("2.15.0");
  EXPECT_EQ(path_for(""), library);
}

TEST_F(InstallationTest, for_a_torch_without_a_library_those_there_are_named_in_order) {
  write_library_of_package("2.13");
  write_library_of_package("2.9");
  write_torch("2.16.0");
  EXPECT_THAT(path_for(""), HasSubstr("no library for torch 2.16, only for torch 2.9, 2.13"));
}

TEST_F(InstallationTest, without_a_torch_one_of_several_has_to_be_chosen) {
  const std::string library = write_library_of_package("2.13");
  EXPECT_EQ(path_for(""), library) << "the only one";
  write_library_of_package("2.15");
  EXPECT_THAT(path_for(""), HasSubstr("--torch"));
}

TEST_F(InstallationTest, compiled_parts_are_told_by_the_python_they_are_for) {
  write_library_of_package("2.13");
  EXPECT_THAT(found().pythons, IsEmpty());
  EXPECT_EQ(found().python, "3.11");
  for (const char* python : {"311", "314"}) {
    write(std::string(kPackages) + "modcache/lib/_guards.cpython-" + python +
          "-x86_64-linux-gnu.so");
  }
  EXPECT_THAT(found().pythons, ElementsAre("3.11", "3.14"));
}

TEST_F(InstallationTest, a_library_that_is_named_has_its_facts) {
  const std::string library = write_library("elsewhere", "2.14.1");
  EXPECT_EQ(library_at(library).value().torch, "2.14");
  EXPECT_EQ(library_at(library).value().path, library);
  EXPECT_TRUE(library_at(library + ".gone").status().is_not_found());
}

TEST_F(InstallationTest, where_nothing_is_installed_the_places_are_named) {
  EXPECT_THAT(path_for(""), HasSubstr("/lib/libmodcache.so"));
  EXPECT_THAT(path_for(""), HasSubstr("MODCACHE_LIBRARY"));
}

TEST_F(InstallationTest, a_library_of_the_package_without_facts_is_told_by_its_folder) {
  const std::string library =
      write(kPackages + std::string("modcache/lib/torch-2.14/libmodcache.so"));
  write_library_of_package("2.15");
  EXPECT_EQ(path_for("2.14"), library);
  std::filesystem::create_directories(library.substr(0, library.rfind('.')) + ".json");
  EXPECT_EQ(path_for("2.14"), library) << "the facts are a folder";
}

TEST_F(InstallationTest, facts_and_versions_that_are_none_are_passed_over) {
  write("lib/libmodcache.json", "[1, 2");
  write("lib/libmodcache.so");
  EXPECT_EQ(found().libraries.at(0).torch, "");
  write("lib/libmodcache.json", R"({"torch": 2.13})");
  EXPECT_EQ(found().libraries.at(0).torch, "");
}

TEST_F(InstallationTest, the_engines_are_found_in_a_package_a_prefix_and_a_build) {
  const auto folders = [this] {
    std::vector<std::string> below;
    const std::string prefix = std::filesystem::canonical(prefix_path()).string();
    for (const std::string& folder : engine_folders_beside(prefix + "/bin/modcache")) {
      below.push_back(folder.substr(prefix.size()));
    }
    return below;
  };
  EXPECT_THAT(folders(), IsEmpty());
  write("libmodcache_remote.so");
  EXPECT_THAT(folders(), ElementsAre(""));
  write(std::string(kPackages) + "modcache/lib/libmodcache_remote.so");
  EXPECT_THAT(folders(), ElementsAre("/lib/python3.11/site-packages/modcache/lib", ""));
  write("lib/libmodcache_remote.so");
  EXPECT_THAT(folders(), ElementsAre("/lib", "/lib/python3.11/site-packages/modcache/lib", ""));
  std::filesystem::create_directories(prefix_path() + "/lib64/libmodcache_remote.so");
  EXPECT_EQ(folders().size(), 3u) << "a folder is no library";
}

}  // namespace
}  // namespace modcache::command_line
