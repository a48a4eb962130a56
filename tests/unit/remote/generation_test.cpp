// SPDX-License-Identifier: Apache-2.0
#include "remote/generation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "support/fake_backend.h"

namespace modcache::remote {
namespace {

using testing::FakeBackend;
using testing::ServerCall;
using testing::ValueServer;

using Current = Generations::Current;

bool is_same(const Current& a, const Current& b) {
  return a.generation == b.generation && a.not_before_us == b.not_before_us;
}

// One server, and machines that share it.
class GenerationsTest : public ::testing::Test {
 protected:
  Current found(Generations& machine, const std::string& scope = "scope") {
    const auto current = machine.find_or_make(scope, backend_);
    EXPECT_TRUE(current.is_ok()) << current.status().message();
    return current.is_ok() ? current.value() : Current();
  }
  // As a question for entries looks: at what the server has under the names now.
  std::optional<Current> seen(Generations& machine, const std::string& scope = "scope") {
    std::vector<SharedBytes> values;
    const std::uint64_t clears = machine.clears();
    EXPECT_TRUE(backend_.get_all(machine.names(scope), values).is_ok());
    return machine.note(scope, values[0], values[1], clears);
  }
  std::string name_of_namespace() const { return ours_.names("scope")[0]; }
  std::string name_of_scope() const { return ours_.names("scope")[1]; }

  const std::shared_ptr<ValueServer> server_ = ValueServer::make();
  FakeBackend backend_{server_};
  const Seal seal_;
  Generations ours_{seal_, "modcache", ""};
  Generations theirs_{seal_, "modcache", ""};
};

TEST_F(GenerationsTest, the_first_who_stores_makes_the_marks_and_others_find_them) {
  EXPECT_FALSE(ours_.current("scope").has_value());
  EXPECT_FALSE(seen(ours_).has_value()) << "a question makes none";
  EXPECT_TRUE(server_->names().empty());
  const Current made = found(ours_);
  EXPECT_NE(made.generation.of_namespace, 0u);
  EXPECT_NE(made.generation.of_scope, 0u);
  EXPECT_NE(made.generation.of_scope, made.generation.of_namespace);
  EXPECT_EQ(made.not_before_us, 0);
  EXPECT_TRUE(is_same(found(theirs_), made));
  EXPECT_TRUE(is_same(seen(theirs_).value(), made));
  EXPECT_TRUE(is_same(ours_.current("scope").value(), made));
  EXPECT_EQ(server_->calls(ServerCall::kPutIfAbsent), 2);
  EXPECT_EQ(server_->ttl_ms(name_of_scope()), 0) << "marks do not run out";
}

TEST_F(GenerationsTest, who_loses_the_race_for_a_mark_takes_the_winners) {
  Current theirs;
  bool has_raced = false;
  server_->before_each([&](ServerCall kind) {
    if (kind != ServerCall::kPutIfAbsent || has_raced) return;
    has_raced = true;
    FakeBackend backend(server_);
    theirs = theirs_.find_or_make("scope", backend).value();
  });
  EXPECT_TRUE(is_same(found(ours_), theirs));
  EXPECT_TRUE(has_raced);
}

TEST_F(GenerationsTest, many_machines_that_begin_at_once_agree) {
  std::vector<Current> currents(8);
  std::vector<std::thread> threads;
  for (Current& current : currents) {
    threads.emplace_back([this, &current] {
      FakeBackend backend(server_);
      Generations machine(seal_, "modcache", "");
      current = machine.find_or_make("scope", backend).value();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const Current& current : currents) EXPECT_TRUE(is_same(current, currents.front()));
}

TEST_F(GenerationsTest, a_damaged_mark_counts_for_nothing_and_is_replaced) {
  for (const bool is_cut : {false, true}) {
    const Current before = found(ours_);
    if (is_cut) server_->truncate(name_of_scope(), 31);
    if (!is_cut) server_->flip_byte(name_of_scope(), 3);
    EXPECT_FALSE(seen(theirs_).has_value());
    const Current after = found(theirs_);
    EXPECT_EQ(after.generation.of_namespace, before.generation.of_namespace);
    EXPECT_NE(after.generation.of_scope, before.generation.of_scope);
    EXPECT_TRUE(is_same(seen(ours_).value(), after));
  }
}

TEST_F(GenerationsTest, a_mark_of_somebody_without_the_key_is_replaced) {
  const Seal keyed("secret");
  Generations with_key(keyed, "modcache", "");
  const Current stranger = found(ours_);
  const Current own = found(with_key);
  EXPECT_NE(own.generation.of_scope, stranger.generation.of_scope);
  EXPECT_TRUE(is_same(found(with_key), own));
}

TEST_F(GenerationsTest, what_was_stored_before_a_mark_was_lost_never_counts_again) {
  std::set<std::uint64_t> numbers;
  for (int losses = 0; losses < 50; ++losses) {
    numbers.insert(found(losses % 2 == 0 ? ours_ : theirs_).generation.of_scope);
    server_->forget(name_of_scope());
    EXPECT_FALSE(seen(ours_).has_value());
  }
  EXPECT_EQ(numbers.size(), 50u);
}

TEST_F(GenerationsTest, clearing_a_scope_ends_its_generation_and_no_other) {
  const Current before = found(ours_);
  const Current other = found(ours_, "other");
  ASSERT_TRUE(ours_.clear("scope", 0, backend_).is_ok());
  const Current after = found(ours_);
  EXPECT_NE(after.generation.of_scope, before.generation.of_scope);
  EXPECT_EQ(after.generation.of_namespace, before.generation.of_namespace);
  EXPECT_TRUE(is_same(found(ours_, "other"), other));
}

TEST_F(GenerationsTest, clearing_a_namespace_ends_all_its_scopes_and_no_other_namespace) {
  Generations elsewhere(seal_, "modcache", "another namespace");
  const Current away = found(elsewhere);
  const Current one = found(ours_, "one");
  const Current two = found(ours_, "two");
  ASSERT_TRUE(ours_.clear("", 0, backend_).is_ok());
  EXPECT_FALSE(found(ours_, "one").generation == one.generation);
  EXPECT_FALSE(found(ours_, "two").generation == two.generation);
  EXPECT_TRUE(is_same(found(elsewhere), away));
}

TEST_F(GenerationsTest, clearing_what_is_older_keeps_the_generation_and_never_goes_back_in_time) {
  const Current before = found(ours_);
  for (const std::int64_t older_than : {100, 50, 200, 150}) {
    ASSERT_TRUE(ours_.clear("scope", older_than, backend_).is_ok());
    EXPECT_EQ(found(ours_).generation, before.generation);
  }
  EXPECT_EQ(found(ours_).not_before_us, 200);
  ASSERT_TRUE(theirs_.clear("", 300, backend_).is_ok());
  EXPECT_EQ(found(ours_).generation, before.generation);
  EXPECT_EQ(seen(ours_).value().not_before_us, 300) << "the later of namespace and scope";
  EXPECT_EQ(found(ours_, "other").not_before_us, 300);
}

TEST_F(GenerationsTest, on_a_server_without_marks_a_clear_makes_them) {
  ASSERT_TRUE(ours_.clear("scope", 100, backend_).is_ok());
  EXPECT_EQ(found(theirs_).not_before_us, 100);
  ASSERT_TRUE(ours_.clear("", 0, backend_).is_ok());
  EXPECT_EQ(found(theirs_).not_before_us, 100);
}

// The one wait of this file: others may believe what they saw for a second, and not longer.
TEST_F(GenerationsTest, others_look_again_after_a_second_and_who_cleared_at_once) {
  const Current before = found(ours_);
  found(theirs_);
  ASSERT_TRUE(ours_.clear("scope", 0, backend_).is_ok());
  const auto cleared = Generations::Clock::now();
  EXPECT_FALSE(ours_.current("scope").has_value());
  std::this_thread::sleep_until(cleared + Generations::kLookAgainAfter +
                                std::chrono::milliseconds(1));
  EXPECT_FALSE(theirs_.current("scope").has_value());
  EXPECT_FALSE(seen(theirs_).value().generation == before.generation);
  EXPECT_TRUE(seen(ours_).has_value());
  EXPECT_TRUE(ours_.current("scope").has_value()) << "known again";
}

// The answer to a question is on its way while this process clears.
TEST_F(GenerationsTest, an_answer_from_before_a_clear_does_not_bring_the_cleared_back) {
  found(ours_);
  std::vector<SharedBytes> values;
  ASSERT_TRUE(backend_.get_all(ours_.names("scope"), values).is_ok());
  const std::uint64_t clears = ours_.clears();
  ASSERT_TRUE(ours_.clear("scope", 0, backend_).is_ok());
  EXPECT_NE(ours_.clears(), clears) << "so the question knows that its answer is not to be kept";
  ours_.note("scope", values[0], values[1], clears);
  EXPECT_FALSE(ours_.current("scope").has_value());
  const Current after = found(ours_);
  EXPECT_TRUE(is_same(ours_.current("scope").value(), after));
}

TEST_F(GenerationsTest, a_clear_of_what_is_older_does_not_undo_a_full_one_at_the_same_moment) {
  const Current before = found(ours_);
  bool has_cleared = false;
  server_->before_each([&](ServerCall kind) {
    if (kind != ServerCall::kRemoveIf || std::exchange(has_cleared, true)) return;
    FakeBackend other{server_};
    EXPECT_TRUE(theirs_.clear("scope", 0, other).is_ok());
  });
  ASSERT_TRUE(ours_.clear("scope", 77, backend_).is_ok());
  EXPECT_TRUE(has_cleared);
  const Current after = found(ours_);
  EXPECT_FALSE(after.generation == before.generation);
  EXPECT_EQ(after.not_before_us, 77);
}

TEST_F(GenerationsTest, a_look_that_a_clear_overtakes_is_not_kept) {
  found(ours_);
  bool has_cleared = false;
  server_->before_each([&](ServerCall kind) {
    if (kind != ServerCall::kGet || has_cleared) return;
    has_cleared = true;
    FakeBackend backend(server_);
    EXPECT_TRUE(ours_.clear("other", 0, backend).is_ok());
  });
  found(ours_);
  EXPECT_TRUE(has_cleared);
  EXPECT_FALSE(ours_.current("scope").has_value());
}

TEST_F(GenerationsTest, failures_are_told_and_nothing_is_believed) {
  found(ours_);
  server_->fail(Status::busy("too slow"));
  EXPECT_EQ(theirs_.find_or_make("scope", backend_).status().code(), StatusCode::kBusy);
  EXPECT_EQ(ours_.clear("scope", 0, backend_).code(), StatusCode::kBusy);
  EXPECT_EQ(ours_.clear("scope", 100, backend_).code(), StatusCode::kBusy);
  EXPECT_FALSE(ours_.current("scope").has_value()) << "it may have been cleared all the same";
  EXPECT_FALSE(theirs_.current("scope").has_value());
}

TEST_F(GenerationsTest, a_server_that_takes_no_writes_cannot_be_cleared_and_makes_no_marks) {
  server_->refuse_writes(Status::foreign("read only"));
  EXPECT_EQ(ours_.find_or_make("scope", backend_).status().code(), StatusCode::kForeign);
  EXPECT_EQ(ours_.clear("scope", 0, backend_).code(), StatusCode::kForeign);
}

TEST_F(GenerationsTest, a_clear_that_the_node_of_its_mark_did_not_get_is_a_failure) {
  const Current before = found(ours_);
  server_->leave_out({name_of_scope()});
  EXPECT_FALSE(ours_.clear("scope", 0, backend_).is_ok());
  EXPECT_FALSE(ours_.clear("scope", 100, backend_).is_ok());
  EXPECT_TRUE(is_same(seen(ours_).value(), before));
}

TEST_F(GenerationsTest, a_server_that_keeps_nothing_is_told_from_one_that_does) {
  found(ours_);
  server_->flip_byte(name_of_scope(), 0);
  server_->leave_out({name_of_scope()});
  EXPECT_EQ(ours_.find_or_make("scope", backend_).status().code(), StatusCode::kIoError);
}

TEST_F(GenerationsTest, names_are_of_their_kind_namespace_and_scope_and_of_plain_characters) {
  std::set<std::string> names;
  for (const char* name_space : {"", "a", "ab"}) {
    for (const char* scope : {"", "a", "b", "ab", "\xff/ :*?[]"}) {
      const Generations machine(seal_, "prefix/x", name_space);
      for (const std::string& name : machine.names(scope)) {
        names.insert(name);
        EXPECT_EQ(name.rfind("prefix/x/ctl/", 0), 0u);
        EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-/"),
                  std::string::npos);
      }
    }
  }
  EXPECT_EQ(names.size(), 3u + 15u) << "one for each namespace, one for each scope in each";
}

TEST_F(GenerationsTest, more_scopes_than_it_remembers_are_asked_for_again) {
  constexpr int kScopes = 5000;
  for (int i = 0; i < kScopes; ++i) found(ours_, "scope " + std::to_string(i));
  int known = 0;
  for (int i = 0; i < kScopes; ++i) known += ours_.current("scope " + std::to_string(i)) ? 1 : 0;
  EXPECT_GT(known, 0);
  EXPECT_LT(known, kScopes);
  EXPECT_TRUE(is_same(found(ours_, "scope 0"), found(theirs_, "scope 0")));
}

TEST_F(GenerationsTest, a_forked_child_goes_on_with_what_was_known) {
  const Current before = found(ours_);
  testing::ChildProcess child([&] {
    const auto known = ours_.current("scope");
    if (!known.has_value() || !is_same(*known, before)) return 1;
    return ours_.clear("scope", 0, backend_).is_ok() && !is_same(found(ours_), before) ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(MarkTest, what_is_encoded_is_decoded_and_nothing_else) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    const std::string bytes = encode_mark({~std::uint64_t{0}, -5}, seal);
    EXPECT_EQ(decode_mark(bytes, seal).value().number, ~std::uint64_t{0});
    EXPECT_EQ(decode_mark(bytes, seal).value().not_before_us, -5);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      EXPECT_FALSE(decode_mark(damaged, seal).has_value());
      EXPECT_FALSE(decode_mark(std::string(bytes, 0, i), seal).has_value());
    }
    EXPECT_FALSE(decode_mark(bytes + bytes, seal).has_value());
    EXPECT_FALSE(decode_mark(encode_mark({0, 1}, seal), seal).has_value()) << "no number";
  }
  EXPECT_FALSE(decode_mark(encode_mark({1, 1}, Seal("a")), Seal("b")).has_value());
}

}  // namespace
}  // namespace modcache::remote
