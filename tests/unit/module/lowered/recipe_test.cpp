// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/recipe.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

namespace modcache::module {
namespace {

using ::testing::HasSubstr;

// A model that was saved with this text must load for ever.
constexpr const char* kText =
    "modcache recipe 1\n"
    "0123456789abcdeffedcba9876543210\n"
    "s layer 1 2:__torch__.A #0\n"
    "v layer.weight\n"
    "v scale\n";

TEST(RecipeTest, the_text_of_version_1) {
  const auto recipe = Recipe::parse(kText);
  ASSERT_TRUE(recipe.is_ok()) << recipe.status().message();
  EXPECT_EQ(recipe.value().code.hex(), "0123456789abcdeffedcba9876543210");
  ASSERT_EQ(recipe.value().steps.size(), 3);
  EXPECT_TRUE(recipe.value().steps[0].is_submodule);
  EXPECT_EQ(recipe.value().steps[0].path, "layer");
  EXPECT_EQ(recipe.value().steps[0].object, 1);
  EXPECT_EQ(recipe.value().steps[0].class_mark, "2:__torch__.A #0");
  EXPECT_FALSE(recipe.value().steps[1].is_submodule);
  EXPECT_EQ(recipe.value().steps[1].path, "layer.weight");
  EXPECT_EQ(recipe.value().text(), kText);
}

TEST(RecipeTest, broken_texts) {
  const std::string text = kText;
  for (const std::string& broken :
       {std::string(), std::string("modcache recipe 2\n"), text.substr(0, 30),
        text.substr(0, text.size() - 1), text + "x y\n", text + "v \n", text + "s a b c\n",
        text + "s a 1\n", text + "\n", text + "a b\n", text + "a b 3\n"}) {
    const auto recipe = Recipe::parse(broken);
    ASSERT_FALSE(recipe.is_ok()) << broken;
    EXPECT_THAT(recipe.status().message(), HasSubstr("a recipe in a lowered model"));
  }
}

TEST(RecipeTest, names_may_have_blanks_and_values_lie_at_two_paths) {
  const std::string text = std::string(kText) + "s a%20b 2 3:\nv a%20b.c%25\na b.c%25 4\n";
  const auto recipe = Recipe::parse(text);
  ASSERT_TRUE(recipe.is_ok()) << recipe.status().message();
  EXPECT_EQ(recipe.value().steps[3].path, "a b");
  EXPECT_EQ(recipe.value().steps[4].path, "a b.c%");
  EXPECT_EQ(recipe.value().steps[5].path, "b.c%");
  EXPECT_EQ(recipe.value().steps[5].same_as, 4);
  EXPECT_EQ(recipe.value().text(), text);
}

TEST(RecipeTest, what_a_method_reads_and_no_more) {
  torch::jit::Module module("__torch__.Encoder");
  module.register_buffer("weight", at::ones({2}));
  module.register_buffer("unused", at::ones({2}));
  module.register_attribute("count", c10::IntType::get(), 0);
  module.define("def forward(self, x):\n  self.count = 3\n  return x * self.weight\n");
  const Source source = read_source(module._ivalue(), "forward");
  const Inventory inventory(module._ivalue(), source, TensorWatch::Hashing::kContents, nullptr);
  const auto recipe = Recipe::of(source, inventory);
  ASSERT_TRUE(recipe.is_ok()) << recipe.status().message();
  ASSERT_EQ(recipe.value().steps.size(), 1);
  EXPECT_EQ(recipe.value().steps[0].path, "weight");
}

}  // namespace
}  // namespace modcache::module
