// SPDX-License-Identifier: Apache-2.0
#include "remote/engine_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::remote {
namespace {

class EngineLibraryTest : public ::testing::Test {
 protected:
  ~EngineLibraryTest() override { ::unsetenv("MODCACHE_REMOTE_LIBRARY"); }

  static Result<BackendFactory> open(const std::string& path) {
    ::setenv("MODCACHE_REMOTE_LIBRARY", path.c_str(), 1);
    return open_engine_library();
  }
  static std::string refusal_of(const std::string& path) {
    const Status status = open(path).status();
    EXPECT_EQ(status.code(), StatusCode::kIoError) << path;
    return status.message();
  }
  static BackendOptions options_for(const std::string& host) {
    BackendOptions options;
    options.address.hosts.push_back({host, 1});
    options.timeout_ms = 321;
    return options;
  }
};

TEST_F(EngineLibraryTest, a_library_of_this_build_makes_backends) {
  const auto factory = open(MODCACHE_FAKE_ENGINE);
  ASSERT_TRUE(factory.is_ok()) << factory.status().message();
  const auto backend = factory.value()(options_for("good"));
  ASSERT_TRUE(backend.is_ok());
  EXPECT_TRUE(backend.value()->ping().is_ok());
}

TEST_F(EngineLibraryTest, options_that_the_library_refuses_are_told_in_its_words) {
  const auto factory = open(MODCACHE_FAKE_ENGINE);
  ASSERT_TRUE(factory.is_ok()) << factory.status().message();
  const Status status = factory.value()(options_for("wrong")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "wrong for 321 ms");
}

TEST_F(EngineLibraryTest, a_library_of_another_build_is_refused) {
  const std::string refusal = refusal_of(MODCACHE_OTHER_ENGINE);
  EXPECT_NE(refusal.find(MODCACHE_OTHER_ENGINE), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("another version"), std::string::npos) << refusal;
}

TEST_F(EngineLibraryTest, a_library_that_is_something_else_is_refused) {
  EXPECT_NE(refusal_of("libm.so.6").find("another version"), std::string::npos);
}

TEST_F(EngineLibraryTest, what_is_no_library_or_not_there_is_named) {
  const testing::TemporaryDirectory directory;
  const std::string text = directory / "text.so";
  testing::write_file(text, "no library");
  for (const std::string& path : {text, directory / "gone.so", directory.path()}) {
    const std::string refusal = refusal_of(path);
    EXPECT_NE(refusal.find("libmodcache_remote.so"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(path), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace modcache::remote
