// SPDX-License-Identifier: Apache-2.0
#include "remote/address.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/directory_bytes.h"
#include "support/temporary_directory.h"

namespace modcache::remote {
namespace {

constexpr const char* kSecret = "hunter2secret";

Address parsed_address(const std::string& text) {
  const auto address = parse_address(text);
  EXPECT_TRUE(address.is_ok()) << text << ": " << address.status().message();
  return address.is_ok() ? address.value() : Address();
}

std::string refusal_of(const std::string& text) {
  const auto address = parse_address(text);
  EXPECT_FALSE(address.is_ok()) << text;
  EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument) << text;
  return address.status().message();
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(AddressTest, each_scheme_means_its_engine_its_transport_and_its_port) {
  struct Case {
    const char* scheme;
    Engine engine;
    bool uses_tls;
    int port;
  };
  for (const Case& one :
       {Case{"redis", Engine::kRedis, false, 6379}, Case{"rediss", Engine::kRedis, true, 6379},
        Case{"valkey", Engine::kRedis, false, 6379}, Case{"valkeys", Engine::kRedis, true, 6379},
        Case{"redis+cluster", Engine::kRedisCluster, false, 6379},
        Case{"rediss+cluster", Engine::kRedisCluster, true, 6379},
        Case{"valkey+cluster", Engine::kRedisCluster, false, 6379},
        Case{"valkeys+cluster", Engine::kRedisCluster, true, 6379}}) {
    const Address address = parsed_address(std::string(one.scheme) + "://name");
    EXPECT_EQ(address.engine, one.engine) << one.scheme;
    EXPECT_EQ(address.uses_tls, one.uses_tls) << one.scheme;
    ASSERT_EQ(address.hosts.size(), 1u) << one.scheme;
    EXPECT_EQ(address.hosts[0].name, "name") << one.scheme;
    EXPECT_EQ(address.hosts[0].port, one.port) << one.scheme;
    EXPECT_EQ(address.user + address.password + address.path, "") << one.scheme;
  }
}

TEST(AddressTest, a_full_address_is_taken_apart) {
  const Address address =
      parsed_address("rediss://me:pw@cache.example:6380/3?ca=/etc/ca.pem&prefix=a");
  EXPECT_EQ(address.user, "me");
  EXPECT_EQ(address.password, "pw");
  EXPECT_EQ(address.hosts[0].name, "cache.example");
  EXPECT_EQ(address.hosts[0].port, 6380);
  EXPECT_EQ(address.path, "/3");
  EXPECT_EQ(address.parameter("ca"), "/etc/ca.pem");
  EXPECT_EQ(address.parameter("prefix"), "a");
  EXPECT_EQ(address.parameter("cert"), "");
}

TEST(AddressTest, a_socket_is_a_path_and_has_no_host) {
  for (const char* scheme : {"redis+unix", "valkey+unix"}) {
    const Address address = parsed_address(std::string(scheme) + "://:pw@/run/redis.sock?db=2");
    EXPECT_EQ(address.engine, Engine::kRedis);
    EXPECT_TRUE(address.hosts.empty());
    EXPECT_EQ(address.path, "/run/redis.sock");
    EXPECT_EQ(address.password, "pw");
    EXPECT_EQ(address.parameter("db"), "2");
  }
  EXPECT_TRUE(mentions(refusal_of("redis+unix://host/run/redis.sock"), "names a host"));
  EXPECT_TRUE(mentions(refusal_of("redis+unix://"), "names no socket"));
  EXPECT_TRUE(mentions(refusal_of("redis+unix:///"), "names no socket"));
}

TEST(AddressTest, several_hosts_keep_their_order_and_their_ports) {
  const Address address = parsed_address("redis://u:p@one,two:7000,[::1],[fe80::2]:7001/0");
  ASSERT_EQ(address.hosts.size(), 4u);
  EXPECT_EQ(address.hosts[0].name, "one");
  EXPECT_EQ(address.hosts[0].port, 6379);
  EXPECT_EQ(address.hosts[1].name, "two");
  EXPECT_EQ(address.hosts[1].port, 7000);
  EXPECT_EQ(address.hosts[2].name, "::1");
  EXPECT_EQ(address.hosts[2].port, 6379);
  EXPECT_EQ(address.hosts[3].name, "fe80::2");
  EXPECT_EQ(address.hosts[3].port, 7001);
}

// Its last group would be taken for a port otherwise.
TEST(AddressTest, an_address_of_ipv6_needs_its_brackets) {
  for (const char* host : {"::1", "fe80::1:6379", "1:2:3", "[::1", "[]", "[]:6379", "[::1]6379",
                           "[::1]:", "a[::1]", "::1]"}) {
    EXPECT_TRUE(mentions(refusal_of(std::string("redis://") + host), "[IPv6]:port")) << host;
  }
}

TEST(AddressTest, ports_and_hosts_that_cannot_be_are_refused) {
  for (const char* host :
       {"", "h:", "h:0", "h:65536", "h:99999999999999999999", "h:-1", "h:+1", "h:6379x", "h:0x10",
        "h: 1", ":6379", "a,", ",a", "a,,b", "a:1,b:0", "a b", "host\n", "u:p@", "u:p@:6379"}) {
    refusal_of(std::string("redis://") + host);
  }
  EXPECT_EQ(parsed_address("redis://h:65535").hosts[0].port, 65535);
}

TEST(AddressTest, percent_codes_stand_for_characters_that_have_a_meaning) {
  const Address address = parsed_address("redis://a%40b:p%40%3A%2f%25%3F@h?auth_file=/x%26y%3Dz");
  EXPECT_EQ(address.user, "a@b");
  EXPECT_EQ(address.password, "p@:/%?");
  EXPECT_EQ(address.parameter("auth_file"), "/x&y=z");
  EXPECT_EQ(parsed_address("redis://:100%@h").password, "100%") << "no code";
  EXPECT_EQ(parsed_address("redis://:%zz%4@h").password, "%zz%4") << "no codes";
  EXPECT_EQ(parsed_address("redis://:a:b@h").password, "a:b") << "only the first colon counts";
}

// Such a text would quietly mean another host otherwise.
TEST(AddressTest, an_at_sign_that_ends_no_credentials_has_to_be_encoded) {
  for (const char* text : {"redis://cache.example/a@b/c", "redis://u:pa/ss@h", "redis://u:pa?ss@h",
                           "redis+unix:///run/user@1/redis.sock", "rediss://h?ca=/x@y.pem"}) {
    EXPECT_TRUE(mentions(refusal_of(text), "%40")) << text;
  }
  EXPECT_EQ(parsed_address("redis+unix:///run/user%401/s").path, "/run/user@1/s");
}

TEST(AddressTest, unknown_schemes_are_refused_with_those_that_are_known) {
  for (const char* text :
       {"", "://", "host:6379", "redis", "redis:", "redis:/h", "redis//h", "ftp://h", "REDIS://h",
        " redis://h", "redis+http://h", "memcached://h", "://h", "/a/path", "http://h", "s3://b"}) {
    EXPECT_TRUE(mentions(refusal_of(text), "redis+cluster://")) << text;
  }
}

TEST(AddressTest, unknown_parameters_are_refused_with_those_that_are_known) {
  EXPECT_TRUE(mentions(refusal_of("redis://h?region=x"), "auth_file, ca, cert, db, key, key_file"));
  for (const char* text : {"redis://h?db", "redis://h?=1", "redis://h?db=1&&prefix=a",
                           "redis://h?Db=1", "redis://h?timeout=5", "redis://h?db=1?prefix=a"}) {
    refusal_of(text);
  }
  EXPECT_EQ(parsed_address("redis://h?").parameters.size(), 0u);
}

TEST(AddressTest, a_database_is_a_number_and_a_cluster_has_only_the_first) {
  EXPECT_EQ(parsed_address("redis://h/15").path, "/15");
  for (const char* text :
       {"redis://h/a", "redis://h/-1", "redis://h/0/1", "redis://h?db=x",
        "redis+unix:///s?db=99999", "redis+cluster://h/1", "valkey+cluster://h?db=1"}) {
    EXPECT_TRUE(mentions(refusal_of(text), "database")) << text;
  }
  parsed_address("redis+cluster://h/0");
}

TEST(AddressTest, an_address_is_shown_as_it_is_but_for_its_password) {
  EXPECT_EQ(without_password("redis://u:pw@h:1/0?ca=/x"), "redis://u:***@h:1/0?ca=/x");
  for (const char* text : {"redis://h:6379,i:6380/1?db=2&prefix=a", "redis://u:@h",
                           "redis+unix:///s?db=0", "no address", ""}) {
    EXPECT_EQ(without_password(text), text);
  }
  EXPECT_EQ(without_password("redis://u:***@h"), "redis://u:***@h") << "shown once more";
  EXPECT_EQ(without_password("redis://pw@h"), "redis://***@h") << "its colon was forgotten";
  EXPECT_EQ(without_password("redis://u:pw:6379/0"), "redis://***/0") << "its @ was forgotten";
  EXPECT_EQ(without_password("redis://u:pw/0"), "redis://***/0");
  EXPECT_EQ(without_password("redis://h:70000/0"), "redis://h:70000/0");
}

TEST(AddressTest, a_password_as_it_is_shown_is_none) {
  EXPECT_TRUE(mentions(refusal_of("redis://u:***@h"), "MODCACHE_REMOTE_PASSWORD"));
  EXPECT_EQ(parsed_address("redis://u:%2A%2A%2Ax@h").password, "***x");
}

TEST(AddressTest, what_would_be_ignored_or_fail_later_is_refused) {
  EXPECT_TRUE(mentions(refusal_of("redis://h?prefix=a%20b"), "prefix"));
  EXPECT_TRUE(mentions(refusal_of("rediss://h?verify=false"), "0 and 1"));
  EXPECT_TRUE(mentions(refusal_of("redis://h?key_file="), "key_file"));
  EXPECT_TRUE(mentions(refusal_of("redis://h\x7f"), "host"));
  for (const char* name : {"ca", "cert", "key"}) {
    EXPECT_TRUE(mentions(refusal_of(std::string("redis://h?") + name + "=/f"), "rediss://"));
    parsed_address(std::string("rediss+cluster://h?") + name + "=/f");
  }
  EXPECT_TRUE(mentions(refusal_of("redis://h?verify=0"), "rediss://"));
  parsed_address("rediss://h?verify=0&ca=/f");
}

// The password is put into texts that are right, wrong in one place, and mere rubbish.
TEST(AddressTest, no_text_that_others_see_ever_has_a_password) {
  const std::vector<std::string> schemes = {
      "redis://",  "rediss://", "s3://",  "http://", "redis+unix://",
      "REDIS://",  "redis:/",   "redis:", "ftp://",  "",
      " redis://", "//",        "://",    "x://y://"};
  const std::vector<std::string> users = {"", "user", "a%40b", "a b", "u/v", "u?v"};
  const std::vector<std::string> passwords = {kSecret,
                                              std::string(kSecret) + "@",
                                              std::string("@") + kSecret,
                                              std::string("/x") + kSecret,
                                              std::string("a?b=") + kSecret,
                                              std::string("a?db=1&prefix=") + kSecret,
                                              std::string("a://") + kSecret,
                                              std::string("1,h:") + kSecret,
                                              std::string(kSecret) + "/" + kSecret,
                                              std::string("[") + kSecret + "]",
                                              std::string(":") + kSecret + ":",
                                              std::string("#%zz") + kSecret,
                                              std::string("\xff\n") + kSecret};
  const std::vector<std::string> rests = {
      "h",     "h:6379/0", "",   "h:0",  "h:99999",  ":1",    "[::1",  "h/x",   "h?db=x",
      "h?a=1", "h?a",      "/s", "h,,i", "h?ca=a@b", "h/a@b", "h://i", "h?=&&", "h:1:2"};
  int refused = 0;
  for (const std::string& scheme : schemes) {
    for (const std::string& user : users) {
      for (const std::string& password : passwords) {
        for (const std::string& rest : rests) {
          std::string text = scheme;
          text.append(user).append(":").append(password).append("@").append(rest);
          ASSERT_FALSE(mentions(without_password(text), kSecret)) << text;
          const auto address = parse_address(text);
          refused += address.is_ok() ? 0 : 1;
          ASSERT_FALSE(mentions(address.status().message(), kSecret)) << text;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(AddressTest, the_value_of_a_parameter_that_nobody_knows_is_not_shown) {
  for (const char* name : {"password", "auth", "pwd", "Password", ""}) {
    const std::string text = std::string("redis://h?db=1&") + name + "=" + kSecret + "&prefix=a";
    EXPECT_FALSE(mentions(refusal_of(text), kSecret)) << text;
    EXPECT_FALSE(mentions(without_password(text), kSecret)) << text;
    EXPECT_TRUE(mentions(without_password(text), "&prefix=a")) << text;
  }
}

class CredentialsTest : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"MODCACHE_REMOTE_USER", "MODCACHE_REMOTE_PASSWORD"};
  CredentialsTest() { forget(); }
  ~CredentialsTest() override { forget(); }
  static void forget() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static Address read(const std::string& text) {
    Address address = parsed_address(text);
    const Status status = read_credentials(address);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return address;
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(CredentialsTest, the_environment_fills_in_what_the_address_lacks) {
  set("MODCACHE_REMOTE_USER", "env");
  set("MODCACHE_REMOTE_PASSWORD", "env pw");
  EXPECT_EQ(read("redis://h").user, "env");
  EXPECT_EQ(read("redis://h").password, "env pw");
  EXPECT_EQ(read("redis://me@h").user, "me");
  EXPECT_EQ(read("redis://me@h").password, "env pw");
  EXPECT_EQ(read("redis://:pw@h").password, "pw");
}

TEST_F(CredentialsTest, a_file_goes_before_the_environment) {
  set("MODCACHE_REMOTE_PASSWORD", "env pw");
  const std::string path = directory_ / "auth";
  testing::write_file(path, "me:p:w\n");
  EXPECT_EQ(read("redis://h?auth_file=" + path).user, "me");
  EXPECT_EQ(read("redis://h?auth_file=" + path).password, "p:w");
  testing::write_file(path, "alone\r\n");
  EXPECT_EQ(read("redis://you@h?auth_file=" + path).user, "you");
  EXPECT_EQ(read("redis://you@h?auth_file=" + path).password, "alone");
}

TEST_F(CredentialsTest, a_file_that_cannot_be_read_is_named_and_nothing_takes_its_place) {
  set("MODCACHE_REMOTE_PASSWORD", "env pw");
  Address address = parsed_address("redis://h?auth_file=" + (directory_ / "gone"));
  const Status status = read_credentials(address);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(mentions(status.message(), "gone"));
  EXPECT_TRUE(mentions(status.message(), "auth_file"));
  EXPECT_EQ(address.password, "");
}

}  // namespace
}  // namespace modcache::remote
