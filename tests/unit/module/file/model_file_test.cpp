// SPDX-License-Identifier: Apache-2.0
#include "module/file/model_file.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "module/identity/identity.h"
#include "support/model_file_fixture.h"

namespace modcache::module {
namespace {

using at::IValue;
using cache::Mode;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using ModelFileTest = testing::ModelFileTest;

TEST_F(ModelFileTest, is_one_object_for_each_version_of_the_file) {
  const ModelFilePtr first = file();
  EXPECT_EQ(file(), first);
  EXPECT_EQ(last_model_file(path_), first);
  EXPECT_EQ(first->name(), "scale.pt");
  const std::string digest = first->digest().value();
  EXPECT_EQ(digest.size(), 32u);
  save(5);
  EXPECT_NE(file(), first);
  EXPECT_NE(file()->digest().value(), digest);
}

TEST_F(ModelFileTest, that_is_missing_is_an_error_and_was_never_there) {
  const std::string missing = directory_ / "missing.pt";
  EXPECT_FALSE(model_file(missing).is_ok());
  EXPECT_EQ(last_model_file(missing), nullptr);
}

TEST_F(ModelFileTest, is_loaded_once_for_a_device_and_requires_no_grad) {
  const ModelFilePtr shared = file();
  EXPECT_TRUE(shared->loaded_on(at::kCPU).isNone());
  std::vector<IValue> modules(4);
  std::vector<std::thread> threads;
  for (IValue& module : modules) {
    threads.emplace_back([&] { module = shared->load_on(at::kCPU); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const IValue& module : modules) EXPECT_TRUE(module.is(modules[0]));
  EXPECT_TRUE(shared->loaded_on(at::kCPU).is(modules[0]));
  EXPECT_FALSE(modules[0].toObject()->getAttr("factor").toTensor().requires_grad());
}

TEST_F(ModelFileTest, that_holds_no_torchscript_is_named_when_it_is_loaded) {
  const std::string text = directory_ / "text.pt2";
  std::ofstream(text) << "no model";
  const ModelFilePtr broken = model_file(text).value();
  EXPECT_THAT([&] { (void)broken->load_on(at::kCPU); },
              ThrowsMessage<c10::Error>(::testing::AllOf(
                  HasSubstr(text), HasSubstr("a .pt2 archive of torch.export is none"))));
}

TEST_F(ModelFileTest, has_the_fingerprint_that_a_process_noted_which_loaded_it) {
  EXPECT_EQ(file()->fingerprint("forward"), "");
  const IValue module = file()->load_on(at::kCPU);
  file()->note_fingerprint_on(at::kCPU, "forward");
  const std::string noted = file()->fingerprint("forward");
  EXPECT_EQ(noted, identity_of(module.toObject(), "forward")->fingerprint(module.toObject()).text);
  forget_file();
  EXPECT_EQ(file()->fingerprint("forward"), noted);
  EXPECT_FALSE(is_loaded());
  EXPECT_EQ(file()->fingerprint("negated"), "") << "each method has its own";
}

TEST_F(ModelFileTest, notes_nothing_of_a_module_that_changed_since_it_was_loaded) {
  const IValue module = file()->load_on(at::kCPU);
  module.toObject()->getAttr("factor").toTensor().mul_(2);
  file()->note_fingerprint_on(at::kCPU, "forward");
  EXPECT_EQ(noted_fingerprint(file()->digest().value(), "forward", ""), "");
}

TEST_F(ModelFileTest, a_note_is_of_one_digest_method_and_kind_of_changes) {
  note_fingerprint("d1", "forward", "", "f1");
  note_fingerprint("d1", "forward", "eval", "f2");
  EXPECT_EQ(noted_fingerprint("d1", "forward", ""), "f1");
  EXPECT_EQ(noted_fingerprint("d1", "forward", "eval"), "f2");
  EXPECT_EQ(noted_fingerprint("d1", "encode", ""), "");
  EXPECT_EQ(noted_fingerprint("d2", "forward", ""), "");
  set_mode(Mode::kRead);
  note_fingerprint("d2", "forward", "", "f3");
  EXPECT_EQ(noted_fingerprint("d2", "forward", ""), "");
}

}  // namespace
}  // namespace modcache::module
