// SPDX-License-Identifier: Apache-2.0
//
// Calls of modules that lie in TorchScript files: file_call.h and model_file.h.
#include "module/file_call.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "cache/cache.h"
#include "fs/posix_file_system.h"
#include "module/model_file.h"
#include "support/temporary_directory.h"
#include "tensor/stored_format.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Cache;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileCallTest : public ::testing::Test {
 protected:
  FileCallTest() {
    static const tensor::StoredFormat format;
    Cache::set_value_format(format);
    EXPECT_TRUE(Cache::instance().configure({{"dir", directory_ / "cache"}}).is_ok());
    Cache::instance().set_mode(cache::Mode::kOn);
    Cache::instance().reset_stats();
    save(2);
  }
  ~FileCallTest() override { Cache::instance().close(); }

  // A module that multiplies by `factor`, with a weight that requires grad.
  void save(double factor) const {
    torch::jit::Module module("__torch__.Scale");
    module.register_parameter("factor", at::full({}, factor).requires_grad_(), false);
    module.define(
        "def forward(self, x):\n  return x * self.factor\n"
        "def negated(self, x):\n  return -x * self.factor\n");
    module.save(path_);
  }
  double call(double x, const std::string& key, const std::string& scope = "",
              const std::string& method = "forward") const {
    const IValue input = at::full({1}, x);
    return lookup_or_run_file({path_, input, scope, method}, key).toTensor().item<double>();
  }
  ModelFilePtr file() const { return model_file(path_).value(); }
  bool is_loaded() const { return !file()->loaded_on(at::kCPU).isNone(); }
  // What another process would begin with: nothing of this version is known.
  void forget_file() const {
    const std::string aside = path_ + ".aside";
    ASSERT_EQ(::rename(path_.c_str(), aside.c_str()), 0);
    ASSERT_EQ(::rename(aside.c_str(), path_.c_str()), 0);  // has another time of change
  }
  static std::int64_t stat(const std::string& name) { return Cache::instance().stats().at(name); }

  const testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "scale.pt";
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

TEST_F(FileCallTest, threads_load_it_once) {
  std::vector<IValue> modules(8);
  std::vector<std::thread> threads;
  const ModelFilePtr shared = file();
  for (IValue& module : modules) {
    threads.emplace_back([&] { module = shared->load_on(at::kCPU); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const IValue& module : modules) EXPECT_TRUE(module.is(modules[0]));
}

TEST_F(FileCallTest, rows) {
  const IValue input = at::tensor({1.0F, 2.0F});
  const std::string scope;
  const std::string method = "forward";
  const std::vector<std::string_view> keys{"a", "b"};
  for (int turn = 0; turn < 2; ++turn) {
    const Rows rows = lookup_or_run_file_rows({path_, input, scope, method}, BatchKeys(keys));
    EXPECT_TRUE(at::equal(rows.together.toTensor(), at::tensor({2.0F, 4.0F})));
    EXPECT_FALSE(rows.together.toTensor().requires_grad());
    forget_file();
  }
  EXPECT_FALSE(is_loaded());
}

TEST_F(FileCallTest, a_missing_file_is_named) {
  const std::string path = directory_ / "missing.pt";
  const IValue input = at::ones({1});
  const std::string scope;
  const std::string method = "forward";
  const auto call_it = [&] { (void)lookup_or_run_file({path, input, scope, method}, "k"); };
  EXPECT_THAT(call_it, ThrowsMessage<c10::Error>(HasSubstr(path)));
}

}  // namespace
}  // namespace modcache::module
