// SPDX-License-Identifier: Apache-2.0
//
// The contract of remote/backend.h, against the server that MODCACHE_TEST_REMOTE names. Without it
// the tests are skipped. Names are new in each test, so a server may be used again.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "remote/backend.h"
#include "unit/backends/test_backend.h"

namespace modcache::remote {
namespace {

using std::chrono::steady_clock;

constexpr std::int64_t kNeverExpires = 0;
constexpr auto kSeenWithin = std::chrono::seconds(2);

std::string bytes_of(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  std::uint64_t state = seed * 2654435761ULL + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

class BackendContractTest : public ::testing::Test {
 protected:
  void SetUp() override {
    backend_ = testing::make_test_backend();
    if (backend_ == nullptr) GTEST_SKIP() << "MODCACHE_TEST_REMOTE names no server";
    folder_ = "test-" + std::to_string(random_number()) + "/";
  }

  std::string name(const std::string& rest) const { return folder_ + rest; }
  std::vector<std::string> names(int count) const {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(name("v:" + std::to_string(i)));
    return all;
  }
  void put(const std::vector<NamedValue>& values) { put(*backend_, values); }
  static void put(Backend& backend, const std::vector<NamedValue>& values) {
    std::vector<bool> are_stored;
    const Status status = backend.put_all(values, kNeverExpires, are_stored);
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_EQ(are_stored, std::vector<bool>(values.size(), true));
  }
  void remove(const std::vector<std::string>& names) {
    const Status status = backend_->remove_all(names);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  // "-" for a value that is not there.
  std::vector<std::string> get(const std::vector<std::string>& names) {
    return get(*backend_, names);
  }
  static std::vector<std::string> get(Backend& backend, const std::vector<std::string>& names) {
    std::vector<SharedBytes> values;
    const Status status = backend.get_all(names, values);
    EXPECT_TRUE(status.is_ok()) << status.message();
    EXPECT_EQ(values.size(), names.size());
    std::vector<std::string> texts;
    for (const SharedBytes& value : values) {
      texts.emplace_back(value.owner == nullptr ? "-" : value.view());
    }
    return texts;
  }
  std::string get_one(const std::string& name) { return get({name}).front(); }

  std::unique_ptr<Backend> backend_;
  std::string folder_;
};

TEST_F(BackendContractTest, a_server_answers_a_ping) {
  const Status status = backend_->ping();
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST_F(BackendContractTest, many_values_go_and_come_in_one_call) {
  std::vector<NamedValue> values;
  for (const std::string& one : names(300)) {
    values.push_back({one, bytes_of(2048, static_cast<unsigned>(values.size()))});
  }
  put(values);
  const std::vector<std::string> got = get(names(300));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i], values[i].value) << i;
}

TEST_F(BackendContractTest, values_may_be_any_bytes) {
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes.push_back(static_cast<char>(byte));
  const std::vector<NamedValue> values = {{name("zeros"), std::string(3, '\0')},
                                          {name("lines"), "a\r\nb\r\n\r\n"},
                                          {name("all"), all_bytes}};
  put(values);
  EXPECT_EQ(get({name("all"), name("zeros"), name("lines")}),
            (std::vector<std::string>{all_bytes, std::string(3, '\0'), "a\r\nb\r\n\r\n"}));
}

TEST_F(BackendContractTest, a_name_may_have_every_character_that_is_allowed) {
  const std::string odd = name("aZ09.:_-/x..y/-:");
  put({{odd, "odd"}});
  EXPECT_EQ(get_one(odd), "odd");
}

TEST_F(BackendContractTest, an_empty_value_is_there) {
  put({{name("empty"), ""}, {name("other"), "x"}});
  EXPECT_EQ(get({name("empty"), name("other"), name("missing")}),
            (std::vector<std::string>{"", "x", "-"}));
}

TEST_F(BackendContractTest, large_values_go_and_come) {
  const std::string large = bytes_of(3 << 20, 1);
  const std::string other = bytes_of(3 << 20, 2);
  put({{name("large"), large}, {name("small"), "s"}, {name("other"), other}});
  const auto got = get({name("other"), name("small"), name("large")});
  EXPECT_TRUE(got[0] == other);
  EXPECT_EQ(got[1], "s");
  EXPECT_TRUE(got[2] == large);
}

TEST_F(BackendContractTest, a_value_replaces_the_one_before) {
  put({{name("v"), "first"}, {name("large"), bytes_of(1 << 20, 1)}});
  put({{name("v"), "second"}, {name("large"), "small now"}});
  EXPECT_EQ(get({name("v"), name("large")}), (std::vector<std::string>{"second", "small now"}));
  put({{name("v"), bytes_of(1 << 20, 3)}});
  EXPECT_TRUE(get_one(name("v")) == bytes_of(1 << 20, 3));
}

TEST_F(BackendContractTest, of_two_values_of_one_name_in_one_call_the_last_counts) {
  put({{name("v"), "first"}, {name("w"), "other"}, {name("v"), "last"}});
  EXPECT_EQ(get_one(name("v")), "last");
}

TEST_F(BackendContractTest, names_that_are_not_there_have_no_value) {
  put({{name("there"), "x"}});
  EXPECT_EQ(get({name("missing"), name("there"), name("too")}),
            (std::vector<std::string>{"-", "x", "-"}));
  EXPECT_TRUE(get({}).empty());
}

TEST_F(BackendContractTest, a_name_may_come_twice_in_one_question) {
  put({{name("v"), "x"}, {name("large"), bytes_of(1 << 20, 1)}});
  const auto got = get({name("v"), name("large"), name("v"), name("large")});
  EXPECT_EQ(got[0], "x");
  EXPECT_EQ(got[2], "x");
  EXPECT_TRUE(got[1] == got[3]);
  EXPECT_EQ(got[1].size(), std::size_t{1} << 20);
}

TEST_F(BackendContractTest, removed_values_are_gone_and_may_come_again) {
  put({{name("a"), "1"}, {name("b"), "2"}, {name("large"), bytes_of(1 << 20, 1)}});
  remove({name("a"), name("large"), name("never:there")});
  EXPECT_EQ(get({name("a"), name("b"), name("large")}), (std::vector<std::string>{"-", "2", "-"}));
  remove({name("a")});
  put({{name("a"), "again"}, {name("large"), "again"}});
  EXPECT_EQ(get({name("a"), name("large")}), (std::vector<std::string>{"again", "again"}));
}

TEST_F(BackendContractTest, only_the_first_value_is_put_where_there_is_none) {
  for (const char* const one : {"plain", "x/ctl/lease"}) {
    const auto first = backend_->put_if_absent({name(one), "first"});
    ASSERT_TRUE(first.is_ok()) << first.status().message();
    EXPECT_TRUE(first.value());
    const auto second = backend_->put_if_absent({name(one), "second"});
    ASSERT_TRUE(second.is_ok()) << second.status().message();
    EXPECT_FALSE(second.value());
    EXPECT_EQ(get_one(name(one)), "first");
    remove({name(one)});
    const auto third = backend_->put_if_absent({name(one), "third"});
    ASSERT_TRUE(third.is_ok()) << third.status().message();
    EXPECT_TRUE(third.value());
    EXPECT_EQ(get_one(name(one)), "third");
  }
}

TEST_F(BackendContractTest, a_value_that_was_put_with_others_is_not_absent) {
  put({{name("v"), "x"}});
  const auto second = backend_->put_if_absent({name("v"), "second"});
  ASSERT_TRUE(second.is_ok()) << second.status().message();
  EXPECT_FALSE(second.value());
  EXPECT_EQ(get_one(name("v")), "x");
}

TEST_F(BackendContractTest, a_value_is_removed_only_if_it_is_as_expected) {
  put({{name("v"), "mine"}});
  const auto others = backend_->remove_if(name("v"), "another's");
  ASSERT_TRUE(others.is_ok()) << others.status().message();
  EXPECT_FALSE(others.value());
  EXPECT_EQ(get_one(name("v")), "mine");
  const auto removed = backend_->remove_if(name("v"), "mine");
  ASSERT_TRUE(removed.is_ok()) << removed.status().message();
  EXPECT_TRUE(removed.value());
  EXPECT_EQ(get_one(name("v")), "-");
}

TEST_F(BackendContractTest, another_backend_sees_a_value_within_two_seconds) {
  const auto other = testing::make_test_backend();
  EXPECT_EQ(get(*other, {name("v")}).front(), "-");
  put({{name("v"), "x"}});
  const auto until = steady_clock::now() + kSeenWithin;
  std::string seen = "-";
  while (seen == "-" && steady_clock::now() < until) {
    seen = get(*other, {name("v")}).front();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(seen, "x");
}

TEST_F(BackendContractTest, another_backend_sees_a_control_value_at_once) {
  const auto other = testing::make_test_backend();
  const std::string control = name("x/ctl/mark");
  EXPECT_EQ(get(*other, {control}).front(), "-");
  for (const char* const value : {"1", "2", ""}) {
    put({{control, value}});
    EXPECT_EQ(get(*other, {control}).front(), value);
  }
  remove({control});
  EXPECT_EQ(get(*other, {control}).front(), "-");
}

TEST_F(BackendContractTest, two_threads_write_and_read_at_once) {
  const auto write_and_read = [&](Backend& backend, const std::string& mine) {
    for (int round = 0; round < 10; ++round) {
      std::vector<NamedValue> values;
      std::vector<std::string> asked;
      std::vector<std::string> expected;
      for (int i = 0; i < 20; ++i) {
        asked.push_back(name(mine + std::to_string(round) + ":" + std::to_string(i)));
        expected.push_back(bytes_of(100 + static_cast<std::size_t>(i), 7));
        values.push_back({asked.back(), expected.back()});
      }
      put(backend, values);
      EXPECT_EQ(get(backend, asked), expected);
    }
  };
  const auto other = testing::make_test_backend();
  std::thread thread([&] { write_and_read(*other, "theirs"); });
  write_and_read(*backend_, "mine");
  thread.join();
}

TEST_F(BackendContractTest, what_processes_write_that_begin_together_is_found) {
  const int count = 12;
  std::vector<pid_t> children;
  std::vector<std::string> asked;
  for (int i = 0; i < count; ++i) {
    asked.push_back(name("p:" + std::to_string(i)));
    const pid_t child = ::fork();
    if (child == 0) {
      std::vector<bool> are_stored;
      const auto backend = testing::make_test_backend();
      const Status status = backend->put_all({{asked.back(), "x"}}, kNeverExpires, are_stored);
      ::_exit(status.is_ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int outcome = 0;
    ASSERT_EQ(::waitpid(child, &outcome, 0), child);
    EXPECT_EQ(outcome, 0);
  }
  std::this_thread::sleep_for(kSeenWithin);
  EXPECT_EQ(get(asked), std::vector<std::string>(count, "x"));
}

TEST_F(BackendContractTest, hundreds_of_small_calls_are_found_again) {
  const int calls = 300;
  for (int i = 0; i < calls; ++i) put({{name("c:" + std::to_string(i)), std::to_string(i)}});
  std::vector<std::string> asked;
  std::vector<std::string> expected;
  for (int i = 0; i < calls; ++i) {
    asked.push_back(name("c:" + std::to_string(i)));
    expected.push_back(std::to_string(i));
  }
  EXPECT_EQ(get(asked), expected);
}

}  // namespace
}  // namespace modcache::remote
