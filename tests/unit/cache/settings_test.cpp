// SPDX-License-Identifier: Apache-2.0
#include "cache/settings.h"

#include <gmock/gmock.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace modcache::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A variable of the environment for the length of one test.
class EnvironmentVariable {
 public:
  EnvironmentVariable(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    set(value);
  }
  ~EnvironmentVariable() { set(before_.has_value() ? before_->c_str() : nullptr); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  void set(const char* value) {
    if (value == nullptr) {
      ::unsetenv(name_.c_str());
    } else {
      ::setenv(name_.c_str(), value, 1);
    }
  }
  std::string name_;
  std::optional<std::string> before_;
};

Settings some_settings() {
  Settings settings;
  settings.dir = "/data/cache";
  return settings;
}

struct Case {
  std::string option;
  std::string given;
  std::string shown;  // the valid choices, or the text form of a valid value
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.option << "=" << c.given;
}

class ValidOption : public ::testing::TestWithParam<Case> {};

TEST_P(ValidOption, is_taken_and_shown_in_its_text_form) {
  Settings settings = some_settings();
  const Options before = to_options(settings);
  ASSERT_TRUE(apply_options({{GetParam().option, GetParam().given}}, settings).is_ok());
  Options expected = before;
  expected[GetParam().option] = GetParam().shown;
  EXPECT_EQ(to_options(settings), expected);
}

TEST_P(ValidOption, can_be_set_to_what_is_shown) {
  Settings settings = some_settings();
  ASSERT_TRUE(apply_options({{GetParam().option, GetParam().given}}, settings).is_ok());
  const Options shown = to_options(settings);
  Settings again;
  ASSERT_TRUE(apply_options(shown, again).is_ok());
  EXPECT_EQ(to_options(again), shown);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, ValidOption,
    ::testing::Values(
        Case{"dir", "/elsewhere/a/../b/", "/elsewhere/b"}, Case{"dir", "/", "/"},
        Case{"mode", "off", "off"}, Case{"mode", "read", "read"}, Case{"mode", "on", "on"},
        Case{"mode", "refresh", "refresh"}, Case{"mode", "verify", "verify"},
        Case{"dtype", "keep", "keep"}, Case{"dtype", "float16", "float16"},
        Case{"dtype", "bfloat16", "bfloat16"}, Case{"codec", "none", "none"},
        Case{"codec", "zstd", "zstd"}, Case{"min_run_us", "0", "0"},
        Case{"min_run_us", "5000", "5000"},
        Case{"min_run_us", "9223372036854775807", "9223372036854775807"}, Case{"max_age", "0", "0"},
        Case{"max_age", "86400", "86400"}, Case{"admission", "all", "all"},
        Case{"admission", "second", "second"}, Case{"verify_share", "0", "0"},
        Case{"verify_share", "0.001", "0.001"}, Case{"verify_share", "1e-05", "1e-05"},
        Case{"verify_share", "2.5E-3", "0.0025"}, Case{"verify_share", "1", "1"},
        Case{"memory", "0", "0"}, Case{"memory", "512MiB", "536870912"},
        Case{"disk", "2GB", "2000000000"}, Case{"durability", "relaxed", "relaxed"},
        Case{"durability", "strict", "strict"}, Case{"policy", "auto", "auto"},
        Case{"policy", "lru", "lru"}, Case{"policy", "keep", "keep"},
        Case{"policy", "keep", "keep"}, Case{"match", "input", "input"},
        Case{"match", "none", "none"}, Case{"strict", "true", "true"}, Case{"strict", "1", "true"},
        Case{"strict", "True", "true"}, Case{"strict", "false", "false"},
        Case{"strict", "0", "false"}, Case{"strict", "False", "false"}, Case{"namespace", "", ""},
        Case{"namespace", "team a: \xC3\xA4", "team a: \xC3\xA4"}, Case{"io", "mmap", "mmap"},
        Case{"io", "pread", "pread"}, Case{"log", "off", "off"}, Case{"log", "error", "error"},
        Case{"log", "warning", "warning"}, Case{"log", "info", "info"}));

class InvalidOption : public ::testing::TestWithParam<Case> {};

TEST_P(InvalidOption, is_refused_with_what_was_given_and_what_is_valid) {
  Settings settings = some_settings();
  const Status status = apply_options({{GetParam().option, GetParam().given}}, settings);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(GetParam().option), HasSubstr("'" + GetParam().given + "'"),
                    HasSubstr(GetParam().shown)));
}

TEST_P(InvalidOption, changes_nothing_beside_valid_ones_either) {
  Settings settings = some_settings();
  const Options before = to_options(settings);
  Options options{{"dir", "/other"}, {"namespace", "x"}, {"strict", "true"}};
  options[GetParam().option] = GetParam().given;
  EXPECT_FALSE(apply_options(options, settings).is_ok());
  EXPECT_EQ(to_options(settings), before);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, InvalidOption,
    ::testing::Values(
        Case{"dir", "", "path of a directory"},
        Case{"dir", std::string("/a\0b", 4), "path of a directory"},
        Case{"mode", "ON", "one of: off, read, on, refresh, verify"},
        Case{"mode", "", "one of: off, read, on, refresh, verify"},
        Case{"dtype", "half", "one of: keep, float16, bfloat16"},
        Case{"codec", "gzip", "one of: none, zstd"}, Case{"min_run_us", "-1", "not negative"},
        Case{"min_run_us", "-0", "not negative"}, Case{"min_run_us", "", "integer"},
        Case{"min_run_us", "1.5", "integer"}, Case{"min_run_us", "5ms", "integer"},
        Case{"min_run_us", "9223372036854775808", "integer"}, Case{"max_age", "-1", "not negative"},
        Case{"max_age", "all", "integer"}, Case{"verify_share", "-1e-4", "0 to 1"},
        Case{"verify_share", "-0", "0 to 1"}, Case{"verify_share", "inf", "0 to 1"},
        Case{"verify_share", "nan", "0 to 1"}, Case{"verify_share", "", "0 to 1"},
        Case{"verify_share", "1e999", "0 to 1"}, Case{"verify_share", "0.1%", "0 to 1"},
        Case{"memory", "-1", "not negative"}, Case{"memory", "", "512MiB"},
        Case{"disk", "plenty", "512MiB"}, Case{"durability", "safe", "one of: relaxed, strict"},
        Case{"policy", "LRU", "one of: auto, lru, keep"},
        Case{"policy", "s3fifo", "one of: auto, lru, keep"},
        Case{"admission", "once", "one of: all, second"}, Case{"verify_share", "1.5", "0 to 1"},
        Case{"verify_share", "-0.1", "0 to 1"}, Case{"match", "value", "one of: input, none"},
        Case{"strict", "yes", "one of: false, true"}, Case{"io", "direct", "one of: mmap, pread"},
        Case{"log", "debug", "one of: off, error, warning, info"}));

TEST(SettingsTest, an_unknown_option_is_refused_with_all_that_are_known) {
  Settings settings = some_settings();
  const Status status = apply_options({{"memroy", "1GB"}}, settings);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'memroy'"));
  for (const auto& [name, value] : to_options(settings)) {
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST(SettingsTest, a_relative_directory_stands_for_where_it_was_given) {
  Settings settings = some_settings();
  ASSERT_TRUE(apply_options({{"dir", "here/./cache"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, (std::filesystem::current_path() / "here/cache").string());
}

TEST(SettingsTest, ExpandsHomeDirectory) {
  const EnvironmentVariable home("HOME", "/users/me");
  Settings settings = some_settings();
  ASSERT_TRUE(apply_options({{"dir", "~/cache/"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, "/users/me/cache");
  ASSERT_TRUE(apply_options({{"dir", "~"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, "/users/me");
  ASSERT_TRUE(apply_options({{"dir", "/data/~/cache~"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, "/data/~/cache~");
  ASSERT_TRUE(apply_options({{"dir", "./~"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, (std::filesystem::current_path() / "~").string());
}

TEST(SettingsTest, ExpandsHomeDirectoryOfUser) {
  Settings settings = some_settings();
  ASSERT_TRUE(apply_options({{"dir", "~root/cache"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, std::string(getpwnam("root")->pw_dir) + "/cache");
}

TEST(SettingsTest, ExpandsHomeDirectoryWithoutHomeVariable) {
  const EnvironmentVariable home("HOME", "");
  Settings settings = some_settings();
  ASSERT_TRUE(apply_options({{"dir", "~/cache"}}, settings).is_ok());
  EXPECT_EQ(settings.dir, std::string(getpwuid(geteuid())->pw_dir) + "/cache");
}

TEST(SettingsTest, ExpandsHomeDirectoryFromEnvironment) {
  const EnvironmentVariable home("HOME", "/users/me");
  const EnvironmentVariable dir("MODCACHE_DIR", "~/cache");
  std::vector<std::string> warnings;
  EXPECT_EQ(settings_from_environment(warnings).dir, "/users/me/cache");
  EXPECT_TRUE(warnings.empty());
}

TEST(SettingsTest, ShowsDirectoryThatIsNotUtf8AsText) {
  const EnvironmentVariable dir("MODCACHE_DIR", "/data/latin\xe4");
  std::vector<std::string> warnings;
  const Settings settings = settings_from_environment(warnings);
  EXPECT_EQ(settings.dir, "/data/latin\xe4");
  const std::string shown = to_options(settings).at("dir");
  EXPECT_EQ(shown, "/data/latin\xf4\x8f\xbf\xa4");
  Settings again = some_settings();
  ASSERT_TRUE(apply_options({{"dir", shown}}, again).is_ok());
  EXPECT_EQ(again.dir, settings.dir);
}

TEST(SettingsTest, RejectsHomeDirectoryOfUnknownUser) {
  Settings settings = some_settings();
  const Status status = apply_options({{"dir", "~no-such-user/cache"}}, settings);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("there is no user 'no-such-user'"));
  EXPECT_THAT(status.message(), HasSubstr("'./~no-such-user/cache'"));
}

TEST(SettingsTest, the_defaults_are_those_of_the_documentation) {
  const EnvironmentVariable cache_home("XDG_CACHE_HOME", "/caches");
  std::vector<std::string> warnings;
  const Options expected{{"dir", "/caches/modcache"},
                         {"mode", "on"},
                         {"memory", "1000000000"},
                         {"disk", "100000000000"},
                         {"durability", "relaxed"},
                         {"policy", "auto"},
                         {"admission", "all"},
                         {"match", "input"},
                         {"strict", "false"},
                         {"namespace", ""},
                         {"io", "mmap"},
                         {"log", "warning"},
                         {"dtype", "keep"},
                         {"codec", "none"},
                         {"verify_share", "0"},
                         {"min_run_us", "0"},
                         {"max_age", "0"},
                         {"remote", ""},
                         {"remote_timeout_ms", "500"},
                         {"remote_ttl", "0"}};
  EXPECT_EQ(to_options(settings_from_environment(warnings)), expected);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(SettingsTest, a_shown_address_of_a_server_stands_for_the_one_that_is_set) {
  Settings settings;
  ASSERT_TRUE(apply_options({{"dir", "/cache"}, {"remote", "redis://user:secret@host/1"}}, settings)
                  .is_ok());
  const Options shown = to_options(settings);
  EXPECT_EQ(shown.at("remote"), "redis://user:***@host/1");
  ASSERT_TRUE(apply_options(shown, settings).is_ok());
  EXPECT_EQ(settings.remote, "redis://user:secret@host/1");
  ASSERT_TRUE(apply_options({{"remote", ""}}, settings).is_ok());
  EXPECT_EQ(settings.remote, "");
}

TEST(SettingsTest, a_bad_address_of_a_server_is_refused_without_its_password) {
  Settings settings;
  for (const char* const bad : {"ftp://user:secret@host", "redis://user:secret@host:port",
                                "redis://user:secret@host/0?speed=9", "redis://user:secret@"}) {
    const Status status = apply_options({{"remote", bad}}, settings);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), HasSubstr("user:***@")) << bad;
    EXPECT_THAT(status.message(), Not(HasSubstr("secret"))) << bad;
  }
  for (const char* const bad : {"0", "-1", "60001", "soon"}) {
    EXPECT_FALSE(apply_options({{"remote_timeout_ms", bad}}, settings).is_ok()) << bad;
  }
}

TEST(SettingsTest, without_a_cache_home_the_directory_lies_in_the_home) {
  const EnvironmentVariable home("HOME", "/someone");
  std::vector<std::string> warnings;
  for (const char* unusable : {static_cast<const char*>(nullptr), "", "relative"}) {
    const EnvironmentVariable cache_home("XDG_CACHE_HOME", unusable);
    EXPECT_EQ(settings_from_environment(warnings).dir, "/someone/.cache/modcache");
  }
}

TEST(SettingsTest, every_option_has_its_environment_variable) {
  const EnvironmentVariable dir("MODCACHE_DIR", "/elsewhere");
  const EnvironmentVariable mode("MODCACHE_MODE", "read");
  const EnvironmentVariable memory("MODCACHE_MEMORY", "1KiB");
  const EnvironmentVariable disk("MODCACHE_DISK", "1MB");
  const EnvironmentVariable durability("MODCACHE_DURABILITY", "strict");
  const EnvironmentVariable policy("MODCACHE_POLICY", "keep");
  const EnvironmentVariable admission("MODCACHE_ADMISSION", "second");
  const EnvironmentVariable verify_share("MODCACHE_VERIFY_SHARE", "0.001");
  const EnvironmentVariable match("MODCACHE_MATCH", "none");
  const EnvironmentVariable strict("MODCACHE_STRICT", "1");
  const EnvironmentVariable name_space("MODCACHE_NAMESPACE", "team");
  const EnvironmentVariable io("MODCACHE_IO", "pread");
  const EnvironmentVariable log("MODCACHE_LOG", "error");
  const EnvironmentVariable dtype("MODCACHE_DTYPE", "float16");
  const EnvironmentVariable codec("MODCACHE_CODEC", "zstd");
  const EnvironmentVariable min_run_us("MODCACHE_MIN_RUN_US", "200");
  const EnvironmentVariable remote("MODCACHE_REMOTE", "redis://user:secret@host/1");
  const EnvironmentVariable remote_timeout_ms("MODCACHE_REMOTE_TIMEOUT_MS", "250");
  const EnvironmentVariable remote_ttl("MODCACHE_REMOTE_TTL", "3600");
  std::vector<std::string> warnings;
  const Options expected{
      {"dir", "/elsewhere"},        {"mode", "read"},        {"memory", "1024"},
      {"disk", "1000000"},          {"match", "none"},       {"durability", "strict"},
      {"strict", "true"},           {"io", "pread"},         {"log", "error"},
      {"namespace", "team"},        {"dtype", "float16"},    {"codec", "zstd"},
      {"min_run_us", "200"},        {"admission", "second"}, {"verify_share", "0.001"},
      {"policy", "keep"},           {"max_age", "0"},        {"remote", "redis://user:***@host/1"},
      {"remote_timeout_ms", "250"}, {"remote_ttl", "3600"}};
  EXPECT_EQ(to_options(settings_from_environment(warnings)), expected);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(SettingsTest, a_bad_value_in_the_environment_is_warned_about_and_the_default_stands) {
  const EnvironmentVariable match("MODCACHE_MATCH", "exactly");
  const EnvironmentVariable io("MODCACHE_IO", "pread");
  std::vector<std::string> warnings;
  const Settings settings = settings_from_environment(warnings);
  EXPECT_EQ(settings.match, Match::kInput);
  EXPECT_EQ(settings.io, store::ReadVia::kPread);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("MODCACHE_MATCH"), HasSubstr("'exactly'"),
                                 HasSubstr("input, none"), HasSubstr("default 'input'")));
}

TEST(ParseSizeTest, takes_plain_numbers_and_units_of_both_kinds) {
  const std::vector<std::pair<std::string, std::uint64_t>> sizes{{"0", 0},
                                                                 {"1073741824", 1073741824},
                                                                 {"5b", 5},
                                                                 {"5 B", 5},
                                                                 {"2k", 2000},
                                                                 {"2KB", 2000},
                                                                 {"2KiB", 2048},
                                                                 {"3m", 3000000},
                                                                 {"3MB", 3000000},
                                                                 {"512 MiB", 512ULL << 20},
                                                                 {"2GB", 2000000000},
                                                                 {"1.5g", 1500000000},
                                                                 {"1.5GiB", 3ULL << 29},
                                                                 {"4TB", 4000000000000},
                                                                 {"4tib", 4ULL << 40}};
  for (const auto& [text, size_bytes] : sizes) {
    const auto parsed = parse_size_bytes(text);
    ASSERT_TRUE(parsed.is_ok()) << text;
    EXPECT_EQ(parsed.value(), size_bytes) << text;
  }
}

TEST(ParseSizeTest, refuses_everything_else) {
  for (const std::string text :
       {"", " ", "GB", "-1", "-0", "-1GB", "+1", "1XB", "1GBB", "1 2", "0x10", "1e3", "nan", "inf",
        "1,5GB", "1..5", "99999999TB", "123456789012345678901234567890"}) {
    EXPECT_EQ(parse_size_bytes(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace modcache::cache
