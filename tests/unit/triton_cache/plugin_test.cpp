// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/plugin.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "support/fake_triton.h"
#include "support/packed_response.h"
#include "support/temporary_directory.h"

namespace modcache::triton_cache {
namespace {

using ::testing::ElementsAre;
using testing::fake_triton;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::packed_response;
using testing::TemporaryDirectory;

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() {
    FakeServer::instance() = FakeServer();
    forget_logged_causes();
  }
  ~PluginTest() override {
    plugin_.reset();
    EXPECT_EQ(FakeServer::instance().living, 0) << "errors and attributes are deleted";
    set_log_sink({});
  }

  // The code of an error, which is deleted; nothing where there is none.
  std::optional<ErrorCode> code(TritonApi::Error error) {
    if (error == nullptr) return std::nullopt;
    const ErrorCode code = error->code;
    message_ = error->message;
    api_.error_delete(error);
    return code;
  }
  std::optional<ErrorCode> initialize(const std::string& more = "") {
    const std::string config = R"({"dir": ")" + directory_ / "cache" + '"' + more + '}';
    return code(Plugin::initialize(api_, config.c_str(), plugin_));
  }
  std::optional<ErrorCode> insert(const char* key, const std::vector<std::string>& responses) {
    TRITONCACHE_Allocator allocator;
    allocator.responses = responses;
    allocator.fills_entry = true;
    allocator.fails = copying_fails_;
    TRITONCACHE_CacheEntry entry;
    entry.type = type_;
    for (const auto& response : responses) entry.buffers.push_back({nullptr, response.size()});
    return code(plugin_->insert(key, &entry, &allocator));
  }
  std::optional<ErrorCode> lookup(const char* key) {
    TRITONCACHE_Allocator allocator;
    allocator.fails = copying_fails_;
    TRITONCACHE_CacheEntry entry;
    const auto result = code(plugin_->lookup(key, &entry, &allocator));
    found_ = allocator.responses;
    return result;
  }
  std::int64_t stat(const std::string& name) {
    return plugin_->responses().cache().stats().at(name);
  }

  const TemporaryDirectory directory_;
  TritonApi api_ = fake_triton();
  std::unique_ptr<Plugin> plugin_;
  std::string message_;
  std::vector<std::string> found_;
  MemoryType type_ = MemoryType::kCpu;
  bool copying_fails_ = false;
  const std::string one_ = packed_response({"one"});
  const std::string two_ = packed_response({"two", "three"});
};

TEST_F(PluginTest, answers_what_was_inserted) {
  ASSERT_EQ(initialize(), std::nullopt) << message_;
  EXPECT_EQ(lookup("1"), ErrorCode::kNotFound);
  EXPECT_EQ(insert("1", {one_}), std::nullopt);
  EXPECT_EQ(lookup("1"), std::nullopt);
  EXPECT_THAT(found_, ElementsAre(one_));
}

TEST_F(PluginTest, an_entry_may_have_several_buffers) {
  ASSERT_EQ(initialize(), std::nullopt);
  EXPECT_EQ(insert("1", {one_, two_}), std::nullopt);
  plugin_.reset();
  ASSERT_EQ(initialize(), std::nullopt);
  EXPECT_EQ(lookup("1"), std::nullopt);
  EXPECT_THAT(found_, ElementsAre(one_, two_));
}

TEST_F(PluginTest, a_bad_setting_is_an_error_and_no_plugin) {
  EXPECT_EQ(initialize(R"(, "size": "1000")"), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_, HasSubstr("modcache: unknown setting 'size'; valid settings are: dir"));
  EXPECT_EQ(plugin_, nullptr);
  EXPECT_EQ(code(Plugin::initialize(api_, nullptr, plugin_)), ErrorCode::kInvalidArgument);
}

TEST_F(PluginTest, a_server_of_another_api_is_refused) {
  FakeServer::instance().cache_api_major = 1;
  EXPECT_EQ(initialize(), ErrorCode::kUnsupported);
  EXPECT_THAT(message_, HasSubstr("this server has 1.1 and 1.34"));
  FakeServer::instance().cache_api_major = 0;
  FakeServer::instance().server_api_major = 2;
  EXPECT_EQ(initialize(), ErrorCode::kUnsupported);
}

TEST_F(PluginTest, what_another_version_of_the_server_packed_is_not_found) {
  ASSERT_EQ(initialize(), std::nullopt);
  insert("1", {one_});
  plugin_.reset();
  FakeServer::instance().server_api_minor = 35;
  ASSERT_EQ(initialize(), std::nullopt);
  EXPECT_EQ(lookup("1"), ErrorCode::kNotFound);
}

TEST_F(PluginTest, logs_to_the_server) {
  ASSERT_EQ(initialize(R"(, "log": "info")"), std::nullopt);
  EXPECT_THAT(FakeServer::instance().log,
              ElementsAre(HasSubstr("modcache: responses are cached in '" + directory_.path())));
}

TEST_F(PluginTest, missing_arguments_are_errors) {
  ASSERT_EQ(initialize(), std::nullopt);
  TRITONCACHE_CacheEntry entry;
  TRITONCACHE_Allocator allocator;
  for (const char* key : {static_cast<const char*>(nullptr), ""}) {
    EXPECT_EQ(code(plugin_->lookup(key, &entry, &allocator)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(plugin_->insert(key, &entry, &allocator)), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(code(plugin_->lookup("1", nullptr, &allocator)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plugin_->insert("1", &entry, nullptr)), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_, HasSubstr("allocator"));
}

// Triton would log each error of an insertion: a cache that fails must not fill the log.
TEST_F(PluginTest, what_goes_wrong_in_the_server_is_a_miss_and_counted) {
  ASSERT_EQ(initialize(), std::nullopt);
  copying_fails_ = true;
  EXPECT_EQ(insert("1", {one_}), std::nullopt);
  copying_fails_ = false;
  EXPECT_EQ(lookup("1"), ErrorCode::kNotFound);
  EXPECT_EQ(insert("1", {one_}), std::nullopt);
  copying_fails_ = true;
  EXPECT_EQ(lookup("1"), ErrorCode::kNotFound);
  EXPECT_EQ(stat("errors"), 2);
  EXPECT_THAT(FakeServer::instance().log,
              ElementsAre(HasSubstr("while keeping a response: the server is out of memory"),
                          HasSubstr("while looking a response up")));
}

TEST_F(PluginTest, a_response_that_cannot_be_kept_is_no_failure) {
  ASSERT_EQ(initialize(), std::nullopt);
  EXPECT_EQ(insert("none", {}), std::nullopt);
  EXPECT_EQ(insert("many", std::vector<std::string>(Response::kMostBuffers + 1, one_)),
            std::nullopt);
  EXPECT_EQ(insert("garbage", {"garbage"}), std::nullopt);
  type_ = MemoryType::kGpu;
  EXPECT_EQ(insert("device", {one_}), std::nullopt);
  for (const char* key : {"none", "many", "garbage", "device"}) {
    EXPECT_EQ(lookup(key), ErrorCode::kNotFound) << key;
  }
}

TEST_F(PluginTest, a_server_s_exception_does_not_leave_it) {
  ASSERT_EQ(initialize(), std::nullopt);
  insert("1", {one_});
  api_.copy = [](TRITONCACHE_Allocator*, TritonApi::Entry*) -> TritonApi::Error {
    throw std::bad_alloc();
  };
  plugin_.reset();
  ASSERT_EQ(initialize(), std::nullopt);
  EXPECT_EQ(lookup("1"), ErrorCode::kNotFound);
  EXPECT_EQ(insert("2", {one_}), std::nullopt);
}

}  // namespace
}  // namespace modcache::triton_cache
