// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "module/file/model_file.h"
#include "module/identity/identity.h"
#include "support/scripted_encoder.h"

namespace modcache::module {
namespace {

using testing::object_of;
using testing::ScriptedEncoder;

std::string fingerprint_of_module(const ObjectPtr& module, const std::string& method) {
  return identity_of(module, method)->fingerprint(module).text;
}

class AsLoadedTest : public ::testing::Test {
 protected:
  AsLoadedTest() {
    ScriptedEncoder encoder;
    encoder.code += "def counted(self, x):\n  return x + self.n\n";
    module_ = encoder.make();
  }
  std::string fingerprint(const AsLoaded& loaded, const std::string& method) const {
    return loaded.fingerprint(object_of(module_), method);
  }

  torch::jit::Module module_;
};

TEST_F(AsLoadedTest, knows_the_fingerprint_of_each_method_while_nothing_changed) {
  const AsLoaded loaded(object_of(module_));
  EXPECT_EQ(fingerprint(loaded, "forward"), fingerprint_of_module(object_of(module_), "forward"));
  EXPECT_EQ(fingerprint(loaded, "counted"), fingerprint_of_module(object_of(module_), "counted"));
  EXPECT_NE(fingerprint(loaded, "counted"), fingerprint(loaded, "forward"));
}

TEST_F(AsLoadedTest, knows_none_of_a_method_that_is_not_there) {
  EXPECT_EQ(fingerprint(AsLoaded(object_of(module_)), "encode"), "");
}

TEST_F(AsLoadedTest, knows_none_any_more_of_methods_that_read_what_changed) {
  const AsLoaded loaded(object_of(module_));
  module_.attr("weight").toTensor().mul_(2);
  EXPECT_EQ(fingerprint(loaded, "forward"), "");
  EXPECT_NE(fingerprint(loaded, "counted"), "");
  module_.setattr("n", std::int64_t{9});
  EXPECT_EQ(fingerprint(loaded, "counted"), "");
}

}  // namespace
}  // namespace modcache::module
