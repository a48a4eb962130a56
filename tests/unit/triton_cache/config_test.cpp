// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <string>

#include "triton_cache/plugin.h"

namespace modcache::triton_cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(TritonConfigTest, is_what_triton_makes_of_its_command_line) {
  const auto options = parse_config(R"({"dir": "/data/cache", "disk": "10GB", "min_run_us": 500})");
  ASSERT_TRUE(options.is_ok()) << options.status().message();
  EXPECT_THAT(options.value(),
              UnorderedElementsAre(Pair("dir", "/data/cache"), Pair("disk", "10GB"),
                                   Pair("min_run_us", "500")));
}

TEST(TritonConfigTest, an_unknown_setting_is_an_error_that_lists_the_valid_ones) {
  // `match` is one of modcache's, but says how inputs of modules are compared.
  for (const std::string name : {"size", "match", "Dir", ""}) {
    const auto options = parse_config("{\"" + name + "\": \"1\"}");
    ASSERT_FALSE(options.is_ok()) << name;
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(options.status().message(),
                AllOf(HasSubstr("unknown setting '" + name + "'"),
                      HasSubstr("dir, mode, memory, disk, max_age, durability, policy, namespace, "
                                "io, log, min_run_us, admission")));
  }
}

TEST(TritonConfigTest, what_is_no_object_of_settings_is_refused) {
  for (const char* config : {"", "[]", "3", "{\"dir\": ", "{} {}"}) {
    EXPECT_THAT(parse_config(config).status().message(), HasSubstr("valid settings are: dir"))
        << config;
  }
  for (const char* value : {"[]", "{}", "null", "true"}) {
    EXPECT_THAT(parse_config(std::string("{\"dir\": ") + value + "}").status().message(),
                HasSubstr("must be a string or a number"))
        << value;
  }
}

}  // namespace
}  // namespace modcache::triton_cache
