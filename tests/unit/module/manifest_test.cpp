// SPDX-License-Identifier: Apache-2.0
#include "module/manifest.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <string>

#include "cache/cache.h"
#include "module/scripted.h"
#include "support/temporary_directory.h"
#include "tensor/stored_format.h"

namespace modcache::module {
namespace {

using cache::Cache;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::jit::Module;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    static const tensor::StoredFormat format;
    Cache::set_value_format(format);
    EXPECT_TRUE(Cache::instance().configure({{"dir", directory_ / "cache"}}).is_ok());
    Cache::instance().set_mode(cache::Mode::kOn);
    Cache::instance().reset_stats();
    encoder_.register_parameter("weight", at::ones({3}), false);
    encoder_.define("def forward(self, x):\n  return x * self.weight\n");
  }
  ~ManifestTest() override {
    Cache::instance().set_mode(cache::Mode::kOn);
    Cache::instance().close();
  }

  std::string run(const std::string& key) const {
    const at::IValue object = encoder_._ivalue();
    lookup_or_run({object, at::ones({3}), "", "forward", Want::kTensor}, key);
    return fingerprint(object, "forward");
  }

  testing::TemporaryDirectory directory_;
  Module encoder_{"__torch__.Encoder"};
};

TEST_F(ManifestTest, is_kept_when_a_scope_first_stores_something) {
  const std::string scope = run("a");
  EXPECT_FALSE(lacks_manifest(scope));
  EXPECT_TRUE(lacks_manifest("another"));
  EXPECT_THAT(manifest_of(scope), HasSubstr("\"weight\":"));
  EXPECT_THAT(manifest_of(scope), HasSubstr("\"class\":\"Encoder\""));
  EXPECT_THAT(scopes_of_class("Encoder", "forward"), ElementsAre(scope));
}

TEST_F(ManifestTest, is_not_counted) {
  run("a");
  Cache::instance().flush();
  EXPECT_EQ(Cache::instance().stats().at("stored"), 1);
  EXPECT_EQ(Cache::instance().stats().at("entries_disk"), 1);
  EXPECT_EQ(Cache::instance().clear({}, Cache::Tier::kAll), 1);
}

TEST_F(ManifestTest, is_written_anew_once_everything_was_cleared) {
  const std::string scope = run("a");
  Cache::instance().clear({}, Cache::Tier::kAll);
  EXPECT_THAT(manifest_of(scope), IsEmpty());
  run("a");
  EXPECT_THAT(manifest_of(scope), Not(IsEmpty()));
}

TEST_F(ManifestTest, is_lacked_by_no_scope_where_nothing_may_be_written) {
  Cache::instance().set_mode(cache::Mode::kRead);
  EXPECT_FALSE(lacks_manifest("any"));
}

TEST_F(ManifestTest, remembers_the_last_scopes_of_a_class_each_once) {
  for (int i = 0; i < 10; ++i) put_manifest("s" + std::to_string(i), "Encoder", "forward", "{}");
  put_manifest("s4", "Encoder", "forward", "{}");
  EXPECT_THAT(scopes_of_class("Encoder", "forward"),
              ElementsAre("s2", "s3", "s5", "s6", "s7", "s8", "s9", "s4"));
  EXPECT_THAT(scopes_of_class("Encoder", "encode"), IsEmpty());
}

TEST_F(ManifestTest, is_json_whatever_the_names_hold) {
  const std::string text = describe_scripted(encoder_._ivalue(), "a\"\\\n", "forward", false);
  EXPECT_THAT(text, HasSubstr(R"("scope":"a\"\\\u000a")"));
  EXPECT_THAT(text, Not(HasSubstr("tensors")));
}

TEST_F(ManifestTest, that_is_too_large_is_not_kept) {
  EXPECT_TRUE(lacks_manifest("s"));
  put_manifest("s", "Encoder", "forward", std::string(kMostManifestBytes + 1, ' '));
  EXPECT_THAT(manifest_of("s"), IsEmpty());
  EXPECT_FALSE(lacks_manifest("s"));  // it is not made again at every miss
}

}  // namespace
}  // namespace modcache::module
