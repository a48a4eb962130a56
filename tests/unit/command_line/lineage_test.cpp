// SPDX-License-Identifier: Apache-2.0
#include "command_line/lineage.h"

#include <gtest/gtest.h>

namespace modcache::command_line {
namespace {

Manifest version(const std::string& scope, std::int64_t created_us, const std::string& weight,
                 const std::string& code, const std::string& class_name = "models.Encoder") {
  Manifest manifest;
  manifest.scope = scope;
  manifest.face = "eager";
  manifest.class_name = class_name;
  manifest.method = "forward";
  manifest.created_us = created_us;
  manifest.tensors = {{"w", weight}};
  manifest.code = {{"Encoder.forward", code}};
  return manifest;
}

TEST(LineageTest, a_scope_came_from_the_older_one_that_differs_least) {
  const auto families = families_of({version("c", 3, "w3", "f1"), version("a", 1, "w1", "f1"),
                                     version("d", 4, "w4", "f2"), version("b", 2, "w1", "f2")});
  ASSERT_EQ(families.size(), 1U);
  const auto& members = families[0].members;
  ASSERT_EQ(members.size(), 4U);
  EXPECT_EQ(members[0].manifest.scope, "a");
  EXPECT_EQ(members[0].parent, 0U) << "the first has none";
  EXPECT_EQ(members[1].parent, 0U);
  EXPECT_EQ(changes_text(members[1].changes), "code Encoder.forward");
  EXPECT_EQ(members[2].parent, 0U) << "its code is that of the first";
  EXPECT_EQ(changes_text(members[2].changes), "weight w");
  EXPECT_EQ(members[3].parent, 1U);
}

TEST(LineageTest, among_equals_the_latest_is_the_parent) {
  const auto families = families_of(
      {version("a", 1, "w1", "f"), version("b", 2, "w1", "f"), version("c", 3, "w1", "f")});
  EXPECT_EQ(families[0].members[2].parent, 1U);
  EXPECT_EQ(changes_text(families[0].members[2].changes), "");
}

TEST(LineageTest, classes_and_namespaces_are_families_of_their_own) {
  Manifest elsewhere = version("x", 9, "w", "f");
  elsewhere.name_space = "tenant";
  const auto families =
      families_of({version("a", 1, "w", "f"), elsewhere, version("t", 5, "w", "f", "train.embed")});
  ASSERT_EQ(families.size(), 3U);
  EXPECT_EQ(families[0].members[0].manifest.scope, "x") << "the latest comes first";
  EXPECT_EQ(families[2].members[0].manifest.scope, "a");
}

TEST(LineageTest, of_a_large_family_the_last_count) {
  std::vector<Manifest> manifests;
  for (int i = 0; i < 100; ++i) {
    manifests.push_back(version("s" + std::to_string(i), i + 1, std::to_string(i), "f"));
  }
  const auto families = families_of(manifests);
  EXPECT_EQ(families[0].members.size(), kMostOfFamily);
  EXPECT_EQ(families[0].left_out, 100 - kMostOfFamily);
  EXPECT_EQ(families[0].members.back().manifest.scope, "s99");
}

TEST(LineageTest, changes_are_named_by_kind_and_many_are_counted) {
  EXPECT_EQ(changes_text({{"weight", "a", "1", "2"},
                          {"weight", "b", "1", "2"},
                          {"weight", "c", "1", "2"},
                          {"weight", "d", "1", "2"},
                          {"weight", "e", "1", "2"},
                          {"torch", "", "2.13", "2.14"}}),
            "weight a, b, c and 2 more; torch 2.13 -> 2.14");
}

}  // namespace
}  // namespace modcache::command_line
