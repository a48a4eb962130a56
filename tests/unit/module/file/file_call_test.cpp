// SPDX-License-Identifier: Apache-2.0
#include "module/file/file_call.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <vector>

#include "fs/posix_file_system.h"
#include "support/model_file_fixture.h"

namespace modcache::module {
namespace {

using at::IValue;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileCallTest : public testing::ModelFileTest {
 protected:
  double call(double x, const std::string& key, const std::string& scope = "",
              const std::string& method = "forward") const {
    const IValue input = at::full({1}, x);
    return lookup_or_run_file({path_, input, scope, method}, CallKeys::whole(key))
        .toTensor()
        .item<double>();
  }
};

TEST_F(FileCallTest, the_first_miss_loads_and_hits_do_not) {
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_TRUE(is_loaded());
  forget_file();
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_FALSE(is_loaded());
  EXPECT_EQ(call(4, "b"), 8);
  EXPECT_TRUE(is_loaded());
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_EQ(stat("stored"), 2);
  EXPECT_EQ(stat("hits_memory"), 1);
}

TEST_F(FileCallTest, with_a_scope_nothing_is_hashed) {
  EXPECT_EQ(call(3, "a", "scale@1"), 6);
  // The manifest of the scope, and the scopes of its class; no hash of the file.
  EXPECT_EQ(fs::posix_file_system().list(directory_ / "cache/notes").value().size(), 2U);
  save(5);
  EXPECT_EQ(call(3, "a", "scale@1"), 6);
  EXPECT_FALSE(is_loaded());
  EXPECT_EQ(call(3, "b", "scale@1"), 15);
}

TEST_F(FileCallTest, each_method_has_a_fingerprint_of_its_own) {
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_EQ(call(3, "a", "", "negated"), -6);
  forget_file();
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_EQ(call(3, "a", "", "negated"), -6);
  EXPECT_FALSE(is_loaded());
}

TEST_F(FileCallTest, another_file_in_its_place_is_another_module) {
  EXPECT_EQ(call(3, "a"), 6);
  save(5);
  EXPECT_EQ(call(3, "a"), 15);
}

TEST_F(FileCallTest, a_fingerprint_that_was_noted_wrongly_spoils_no_entry) {
  const std::string digest = file()->digest().value();
  note_fingerprint(digest, "forward", "", "of another module");
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_EQ(stat("bypassed_impure"), 1);
  EXPECT_EQ(stat("stored"), 0);
  EXPECT_EQ(call(3, "a"), 6);
  EXPECT_EQ(stat("stored"), 1);
  EXPECT_NE(noted_fingerprint(digest, "forward", ""), "of another module");
}

TEST_F(FileCallTest, rows) {
  const IValue input = at::tensor({1.0F, 2.0F});
  const std::string scope;
  const std::string method = "forward";
  const std::vector<std::string_view> keys{"a", "b"};
  for (int turn = 0; turn < 2; ++turn) {
    const at::Tensor rows =
        lookup_or_run_file({path_, input, scope, method}, CallKeys(keys)).toTensor();
    EXPECT_TRUE(at::equal(rows, at::tensor({2.0F, 4.0F})));
    EXPECT_FALSE(rows.requires_grad());
    forget_file();
  }
  EXPECT_FALSE(is_loaded());
}

TEST_F(FileCallTest, a_missing_file_is_named) {
  const std::string path = directory_ / "missing.pt";
  const IValue input = at::ones({1});
  const std::string scope;
  const std::string method = "forward";
  const auto call_it = [&] {
    (void)lookup_or_run_file({path, input, scope, method}, CallKeys::whole("k"));
  };
  EXPECT_THAT(call_it, ThrowsMessage<c10::Error>(HasSubstr(path)));
}

}  // namespace
}  // namespace modcache::module
