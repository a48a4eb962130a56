// SPDX-License-Identifier: Apache-2.0
#include "module/call/manifest.h"

#include <gmock/gmock.h>

#include <string>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ManifestTest : public testing::ModuleTest {
 protected:
  static CallParts call_with(const std::string& scope) {
    CallParts parts;
    parts.scope = scope;
    parts.method = "forward";
    return parts;
  }
};

TEST_F(ManifestTest, is_lacked_by_no_scope_where_nothing_may_be_written) {
  set_mode(cache::Mode::kRead);
  EXPECT_FALSE(lacks_manifest(call_with("any")));
}

TEST_F(ManifestTest, remembers_the_last_scopes_of_a_class_each_once) {
  for (int i = 0; i < 10; ++i) put_manifest(call_with("s" + std::to_string(i)), "Encoder", "{}");
  put_manifest(call_with("s4"), "Encoder", "{}");
  EXPECT_THAT(scopes_of_class(test_cache(), "Encoder", "forward"),
              ElementsAre("s2", "s3", "s5", "s6", "s7", "s8", "s9", "s4"));
  EXPECT_THAT(scopes_of_class(test_cache(), "Encoder", "encode"), IsEmpty());
}

TEST_F(ManifestTest, that_is_too_large_is_not_kept) {
  EXPECT_TRUE(lacks_manifest(call_with("s")));
  put_manifest(call_with("s"), "Encoder", std::string(kMostManifestBytes + 1, ' '));
  EXPECT_THAT(manifest_of(test_cache(), "s"), IsEmpty());
  EXPECT_FALSE(lacks_manifest(call_with("s")));  // it is not made again at every miss
}

}  // namespace
}  // namespace modcache::module
