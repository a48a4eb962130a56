// SPDX-License-Identifier: Apache-2.0
//
// The gate and the comparisons, as calls meet them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "cache/session.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using testing::Process;
using testing::text_entry;
using testing::text_of;

class SessionGateTest : public testing::CacheTest {
 protected:
  SessionPtr session() { return here_.cache().session(); }
  Passage ask(const std::string& key, Mode mode = Mode::kOn) {
    const Request request = Process::request(key);
    return session()->ask_gate(Session::batch_of(request), mode)[0];
  }
  bool goes_past_plainly(const std::string& key) {
    const Request request = Process::request(key);
    return session()->goes_past_gate(Session::batch_of(request), Mode::kOn);
  }
  void set(const std::string& option, const std::string& value) {
    ASSERT_TRUE(here_.configure({{option, value}}).is_ok());
  }
  // Asks for keys that never came until they pass by.
  std::string closed_gates_key() {
    for (int i = 0; i < 10'000; ++i) {
      const std::string key = "new " + std::to_string(i);
      if (goes_past(ask(key))) return "newer " + std::to_string(i);
    }
    return {};
  }
  // What a call finds that can run the module.
  std::string lookup(const std::string& key, Session::Missed& missed) {
    SingleFlight::Lead lead;
    return text_of(session()->lookup(Process::request(key), /*may_write=*/true, lead, &missed));
  }
  void note(const std::string& key, const std::string& difference, bool may_write = true) {
    session()->note_verified(Process::request(key), "Encoder.forward", difference, may_write);
  }
  bool is_found(Process& process, const std::string& key) {
    return process.lookup(key) != "<missing>";
  }

  const testing::CapturedLog log_;
};

TEST_F(SessionGateTest, by_default_there_is_none) {
  EXPECT_FALSE(session()->is_gated());
  EXPECT_EQ(ask("key"), Passage::kStore);
}

TEST_F(SessionGateTest, keys_are_stored_at_their_second_sight) {
  set("admission", "second");
  EXPECT_TRUE(session()->is_gated());
  EXPECT_EQ(ask("key"), Passage::kLookUp);
  EXPECT_EQ(ask("key"), Passage::kStore);
}

TEST_F(SessionGateTest, a_batch_asks_for_each_of_its_keys) {
  set("admission", "second");
  ask("b");
  const std::vector<std::string_view> keys{"a", "b", "c"};
  const auto passages =
      session()->ask_gate(BatchRequest{Process::request("a").context, keys, ""}, Mode::kOn);
  EXPECT_EQ(std::vector<Passage>(passages.begin(), passages.end()),
            (std::vector<Passage>{Passage::kLookUp, Passage::kStore, Passage::kLookUp}));
}

TEST_F(SessionGateTest, a_batch_goes_past_as_a_whole_or_not_at_all_on_the_way_of_plain_hits) {
  set("admission", "second");
  const std::string key = closed_gates_key();
  const std::string passing = [&] {
    for (int i = 0; true; ++i) {
      const std::string one = key + "/" + std::to_string(i);
      if (goes_past_plainly(one)) return one + "/again";
    }
  }();
  ask("known");
  const std::int64_t before = here_.stat("bypassed_admission");
  const std::vector<std::string_view> keys{passing, "known"};
  const BatchRequest request{Process::request("a").context, keys, ""};
  EXPECT_FALSE(session()->goes_past_gate(request, Mode::kOn));
  EXPECT_EQ(here_.stat("bypassed_admission"), before);
}

TEST_F(SessionGateTest, what_goes_past_plainly_is_counted_and_noted) {
  set("admission", "second");
  const std::string key = closed_gates_key();
  const std::int64_t before = here_.stat("bypassed_admission");
  int passed = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string one = key + "/" + std::to_string(i);
    if (!goes_past_plainly(one)) continue;  // the sample
    ++passed;
    EXPECT_FALSE(goes_past_plainly(one)) << "a second sight is answered as any call";
  }
  EXPECT_GT(passed, 50);
  EXPECT_EQ(here_.stat("bypassed_admission") - before, passed);
}

TEST_F(SessionGateTest, under_strict_no_call_goes_past_the_rules) {
  set("admission", "second");
  const std::string key = closed_gates_key();
  set("strict", "true");
  for (int i = 0; i < 100; ++i) {
    const std::string one = key + "/" + std::to_string(i);
    EXPECT_FALSE(goes_past_plainly(one));
    EXPECT_EQ(ask(one), Passage::kLookUp);
  }
}

TEST_F(SessionGateTest, a_pass_that_stores_all_asks_nobody) {
  set("admission", "second");
  {
    const StoreAllGuard guard;
    EXPECT_EQ(ask("key"), Passage::kStore);
    EXPECT_FALSE(goes_past_plainly("key"));
  }
  EXPECT_EQ(ask("key"), Passage::kLookUp) << "nor is it a sight";
}

TEST_F(SessionGateTest, setting_admission_begins_anew) {
  set("admission", "second");
  ask("key");
  set("memory", "1MB");
  EXPECT_EQ(ask("key"), Passage::kStore);
  set("admission", "second");
  EXPECT_EQ(ask("key"), Passage::kLookUp);
}

TEST_F(SessionGateTest, a_hit_to_be_compared_is_no_hit_and_says_so) {
  here_.store("key", "text");
  Session::Missed missed;
  EXPECT_EQ(lookup("key", missed), "text");
  EXPECT_FALSE(missed.is_verified);
  set("verify_share", "1");
  EXPECT_EQ(lookup("key", missed), "<missing>");
  EXPECT_TRUE(missed.is_verified);
  EXPECT_FALSE(missed.is_conflict);
  EXPECT_EQ(lookup("absent", missed), "<missing>");
  EXPECT_FALSE(missed.is_verified);
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

TEST_F(SessionGateTest, a_caller_that_cannot_run_anything_gets_every_hit) {
  set("verify_share", "1");
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(SessionGateTest, plain_hits_are_left_to_the_way_that_can_compare_them) {
  const auto find = [&] {
    return text_of(session()->find_in_memory(Process::request("key"), true,
                                             [](const Entry&) { return true; }));
  };
  here_.store("key", "text");
  EXPECT_EQ(find(), "text");
  set("verify_share", "1");
  EXPECT_EQ(find(), "<missing>");
  here_.cache().flush();
  here_.cache().clear({}, Cache::Tier::kMemory);
  const Request request = Process::request("key");
  EXPECT_EQ(session()->find_on_disk(request, true, [](std::string_view) { return true; }), nullptr);
  EXPECT_FALSE(session()->find_hits(Session::batch_of(request), true).has_value());
  EXPECT_EQ(here_.stat("hits_memory"), 1);
  EXPECT_EQ(here_.stat("hits_disk"), 0);
}

TEST_F(SessionGateTest, rows_to_be_compared_are_neither_found_nor_missing) {
  here_.store("a", "text");
  here_.store("b", "text");
  set("verify_share", "1");
  const std::vector<std::string_view> keys{"a", "absent", "b"};
  BatchRequest request{Process::request("a").context, keys, "", nullptr, {}, Form::kWhole};
  EXPECT_TRUE(session()->lookup_all(request, true).verified().empty());
  request.may_be_verified = true;
  const BatchFound found = session()->lookup_all(request, true);
  EXPECT_EQ(found.verified(), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(found.missing(), (std::vector<std::size_t>{1}));
  EXPECT_EQ(here_.stat("hits_memory"), 2) << "those of the first look";
}

TEST_F(SessionGateTest, what_differs_is_dropped_from_memory_and_directory) {
  here_.store("key", "wrong");
  here_.store("other", "right");
  here_.cache().flush();
  Process elsewhere(dir_);
  ASSERT_TRUE(is_found(elsewhere, "key"));
  note("other", "");
  note("key", "all of it");
  EXPECT_FALSE(is_found(here_, "key"));
  EXPECT_FALSE(is_found(elsewhere, "key"));
  EXPECT_TRUE(is_found(here_, "other"));
}

TEST_F(SessionGateTest, where_nothing_may_be_written_it_is_dropped_from_memory_alone) {
  here_.store("key", "wrong");
  here_.cache().flush();
  note("key", "all of it", /*may_write=*/false);
  EXPECT_TRUE(is_found(here_, "key"));
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
}

TEST_F(SessionGateTest, calls_of_a_scope_that_is_switched_off_go_past_until_it_is_cleared) {
  set("verify_share", "0.5");
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  EXPECT_TRUE(session()->is_gated());
  EXPECT_EQ(ask("key"), Passage::kSwitchedOff);
  EXPECT_TRUE(goes_past_plainly("key"));
  EXPECT_EQ(here_.stat("bypassed_verify"), 1);
  EXPECT_EQ(log_.about("SWITCHED OFF").size(), 1u);
  here_.cache().clear({"scope", ""}, Cache::Tier::kAll);
  EXPECT_FALSE(session()->is_gated());
  EXPECT_FALSE(goes_past_plainly("key"));
}

TEST_F(SessionGateTest, setting_verify_share_switches_scopes_on_again) {
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  ASSERT_TRUE(session()->is_gated());
  set("verify_share", "0.5");
  EXPECT_FALSE(session()->is_gated());
}

}  // namespace
}  // namespace modcache::cache
