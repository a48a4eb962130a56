// SPDX-License-Identifier: Apache-2.0
#include "command_line/manifest.h"

#include <gmock/gmock.h>

#include "fs/posix_file_system.h"
#include "store/directory/notes.h"
#include "support/temporary_directory.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> told(const Manifest& a, const Manifest& b) {
  std::vector<std::string> lines;
  for (const Difference& d : differences(a, b)) {
    lines.push_back(d.kind + ' ' + d.name + ": " + d.in_a + " -> " + d.in_b);
  }
  return lines;
}

Manifest eager(const std::string& members) {
  return *parse_manifest(R"({"format": 1, "face": "eager", "scope": "s")" + members + "}");
}

TEST(ManifestTest, its_members_are_read) {
  const auto manifest = parse_manifest(
      R"({"format": 1, "face": "eager", "scope": "s", "class": "models.Encoder",
          "method": "forward", "torch": "2.13.0", "python": "3.11.2", "created_us": 5, "pid": 7,
          "code": {"f": "1"}, "attributes": {}, "modules": {"": "Encoder"}, "tensors": {"w": "2"},
          "later": [1]})");
  ASSERT_TRUE(manifest.has_value());
  EXPECT_EQ(manifest->class_name, "models.Encoder");
  EXPECT_EQ(manifest->created_us, 5);
  EXPECT_EQ(manifest->process, 7);
  EXPECT_EQ(manifest->tensors->at("w"), "2");
  EXPECT_TRUE(manifest->attributes->empty());
}

TEST(ManifestTest, another_format_and_other_text_are_none) {
  for (const char* text :
       {"", "null", "[]", "{", "{\"format\": 2}", "{\"format\": \"1\"}", "{\"format\": 1"}) {
    EXPECT_FALSE(parse_manifest(text).has_value()) << text;
  }
}

TEST(ManifestTest, members_of_another_type_are_as_if_missing) {
  const auto manifest = parse_manifest(
      R"({"format": 1, "scope": 5, "class": null, "created_us": "x", "code": [], "tensors": {"w": 1}})");
  ASSERT_TRUE(manifest.has_value());
  EXPECT_EQ(manifest->scope, "");
  EXPECT_FALSE(manifest->code.has_value());
  EXPECT_TRUE(manifest->tensors->empty());
}

TEST(ManifestTest, what_differs_is_named_by_kind) {
  const Manifest a = eager(R"(, "tensors": {"w": "1", "gone": "1", "same": "1"},
      "attributes": {"scale": "1"}, "torch": "2.13.0")");
  const Manifest b = eager(R"(, "tensors": {"w": "2", "new": "1", "same": "1"},
      "attributes": {"scale": "2"}, "torch": "2.14.0")");
  EXPECT_THAT(told(a, a), IsEmpty());
  EXPECT_THAT(told(a, b), ElementsAre("weight gone: 1 -> ", "weight new:  -> 1", "weight w: 1 -> 2",
                                      "attribute scale: 1 -> 2", "torch : 2.13.0 -> 2.14.0"));
}

TEST(ManifestTest, a_class_is_named_where_none_of_its_functions_says_more) {
  const Manifest a = eager(R"(, "code": {"class A": "1", "A.forward": "1"})");
  const Manifest other_function = eager(R"(, "code": {"class A": "2", "A.forward": "2"})");
  const Manifest other_library = eager(R"(, "code": {"class A": "2", "A.forward": "1"})");
  EXPECT_THAT(told(a, other_function), ElementsAre("code A.forward: 1 -> 2"));
  EXPECT_THAT(told(a, other_library), ElementsAre("code class A: 1 -> 2"));
}

TEST(ManifestTest, what_one_does_not_say_is_not_compared) {
  const Manifest with = eager(R"(, "tensors": {"w": "1"})");
  EXPECT_THAT(told(with, eager("")), IsEmpty());
}

TEST(ManifestTest, digests_of_the_two_faces_are_not_compared) {
  Manifest scripted = eager(R"(, "tensors": {"w": "1"})");
  scripted.face = "torchscript";
  EXPECT_THAT(told(eager(R"(, "tensors": {"w": "2"})"), scripted),
              ElementsAre("face : eager -> torchscript"));
}

TEST(ManifestTest, those_of_a_directory_are_found_among_its_notes) {
  const testing::TemporaryDirectory place;
  const store::Directory directory(fs::posix_file_system(), place.path());
  const auto keep = [&](const std::string& about, const std::string& text) {
    ASSERT_TRUE(store::keep_note(directory, about, text).is_ok());
  };
  auto listing = store::Listing::open(fs::posix_file_system(), place.path()).value();
  EXPECT_THAT(manifests_in(*listing).value(), IsEmpty());
  keep("manifest name\nspace\ns", R"({"format": 1, "scope": "s", "class": "C"})");
  keep("manifest \nother", R"({"format": 1, "scope": "not the one"})");
  keep("manifest \nthird", "damaged");
  keep("file /a", "1 2 3");
  const auto manifests = manifests_in(*listing).value();
  ASSERT_EQ(manifests.size(), 1U);
  EXPECT_EQ(manifests[0].name_space, "name\nspace");
  EXPECT_EQ(manifests[0].class_name, "C");
}

}  // namespace
}  // namespace modcache::command_line
