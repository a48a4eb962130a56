// SPDX-License-Identifier: Apache-2.0
//
// libmodcache.so as MODCACHE_WITH_TORCHSCRIPT=OFF builds it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "support/operators.h"
#include "support/temporary_directory.h"

namespace modcache {
namespace {

using testing::call_operator;
using ::testing::HasSubstr;

std::string error_of(const std::string& name, const std::vector<at::IValue>& arguments) {
  try {
    call_operator(name, arguments);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(WithoutTorchScriptTest, names_the_option_where_a_module_is_given) {
  const at::IValue input = at::ones({1});
  for (const char* op : {"lookup_or_run", "lookup_or_run_any", "lookup_or_run_file"}) {
    EXPECT_THAT(error_of(op, {"encoder.pt", input, "key", "", "forward"}),
                HasSubstr("MODCACHE_WITH_TORCHSCRIPT=ON"));
  }
  EXPECT_THAT(error_of("fingerprint", {input, "forward"}), HasSubstr("cache::fingerprint"));
  EXPECT_THAT(error_of("lower", {input}), HasSubstr("MODCACHE_WITH_TORCHSCRIPT=OFF"));
}

TEST(WithoutTorchScriptTest, stores_and_finds_what_it_is_given) {
  const testing::TemporaryDirectory directory;
  testing::configure({{"dir", directory / "cache"}});
  const at::Tensor value = at::arange(4);
  call_operator("store", {"scope", "key", value});
  EXPECT_TRUE(call_operator("contains", {"scope", "key"}).toBool());
  EXPECT_TRUE(at::equal(call_operator("lookup", {"scope", "key"}).toTensor(), value));
}

}  // namespace
}  // namespace modcache
