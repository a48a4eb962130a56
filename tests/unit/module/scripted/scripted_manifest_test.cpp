// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

#include "module/call/manifest.h"
#include "module/scripted/scripted.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using cache::Cache;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::jit::Module;

class ScriptedManifestTest : public testing::ModuleTest {
 protected:
  ScriptedManifestTest() {
    encoder_.register_parameter("weight", at::ones({3}), false);
    encoder_.define("def forward(self, x):\n  return x * self.weight\n");
  }

  std::string run(const std::string& key) const {
    const at::IValue object = encoder_._ivalue();
    lookup_or_run({object, at::ones({3}), "", "forward", Want::kTensor}, CallKeys::whole(key));
    return fingerprint(object, "forward");
  }

  Module encoder_{"__torch__.Encoder"};
};

TEST_F(ScriptedManifestTest, is_kept_when_a_scope_first_stores_something) {
  const std::string scope = run("a");
  CallParts call;
  call.scope = scope;
  EXPECT_FALSE(lacks_manifest(call));
  call.scope = "another";
  EXPECT_TRUE(lacks_manifest(call));
  EXPECT_THAT(manifest_of(test_cache(), scope), HasSubstr("\"weight\":"));
  EXPECT_THAT(manifest_of(test_cache(), scope), HasSubstr("\"class\":\"Encoder\""));
  EXPECT_THAT(scopes_of_class(test_cache(), "Encoder", "forward"), ElementsAre(scope));
}

TEST_F(ScriptedManifestTest, is_not_counted) {
  run("a");
  test_cache().flush();
  EXPECT_EQ(test_cache().stats().at("stored"), 1);
  EXPECT_EQ(test_cache().stats().at("entries_disk"), 1);
  EXPECT_EQ(test_cache().clear({}, Cache::Tier::kAll), 1);
}

TEST_F(ScriptedManifestTest, is_written_anew_once_everything_was_cleared) {
  const std::string scope = run("a");
  test_cache().clear({}, Cache::Tier::kAll);
  EXPECT_THAT(manifest_of(test_cache(), scope), IsEmpty());
  run("a");
  EXPECT_THAT(manifest_of(test_cache(), scope), Not(IsEmpty()));
}

TEST_F(ScriptedManifestTest, is_json_whatever_the_names_hold) {
  const std::string text = describe_scripted(encoder_._ivalue(), "a\"\\\n", "forward", false);
  EXPECT_THAT(text, HasSubstr(R"("scope":"a\"\\\u000a")"));
  EXPECT_THAT(text, Not(HasSubstr("tensors")));
}

}  // namespace
}  // namespace modcache::module
