// SPDX-License-Identifier: Apache-2.0
//
// Which results admission stores, and hits that are compared with fresh results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/session.h"
#include "support/cache_fixture.h"
#include "support/captured_log.h"
#include "support/eventually.h"
#include "support/text_value.h"

namespace modcache::cache {
namespace {

using testing::Process;
using testing::text_entry;
using testing::text_of;

class SessionVerifyTest : public testing::CacheTest {
 protected:
  SessionPtr session() { return here_.cache().session(); }
  // What a run of the key asks before it stores.
  bool admits(const std::string& key) { return session()->admits(Process::request(key), {}); }
  bool bypasses() { return session()->bypasses("scope", 1); }
  void set(const std::string& option, const std::string& value) {
    ASSERT_TRUE(here_.configure({{option, value}}).is_ok());
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

using SessionAdmissionTest = SessionVerifyTest;

TEST_F(SessionAdmissionTest, by_default_all_results_are_stored) {
  EXPECT_TRUE(admits("key"));
  EXPECT_TRUE(admits("key"));
}

TEST_F(SessionAdmissionTest, second_stores_when_a_key_has_run_before) {
  set("admission", "second");
  EXPECT_FALSE(admits("key"));
  EXPECT_TRUE(admits("key"));
  EXPECT_FALSE(admits("other"));
}

TEST_F(SessionAdmissionTest, second_stores_what_another_thread_waits_for) {
  set("admission", "second");
  const Request request = Process::request("key");
  SingleFlight::Lead lead;
  ASSERT_EQ(session()->lookup(request, /*may_write=*/true, lead), nullptr);
  EXPECT_FALSE(session()->admits(request, lead));
  set("admission", "second");
  std::thread waiting([&] {
    SingleFlight::Lead other;
    (void)session()->lookup(request, /*may_write=*/true, other);
  });
  const Digest128 address = store::address_of(request.context->digest, request.key);
  EXPECT_TRUE(testing::eventually([&] { return lead.is_awaited(address); }));
  EXPECT_TRUE(session()->admits(request, lead));
  lead.kept_nothing();
  lead.give_up();
  waiting.join();
}

TEST_F(SessionAdmissionTest, a_thread_may_store_all_and_records_no_key) {
  set("admission", "second");
  EXPECT_FALSE(Session::set_admits_all(true));
  EXPECT_TRUE(admits("key"));
  std::thread([&] { EXPECT_FALSE(admits("other thread")); }).join();
  EXPECT_TRUE(Session::set_admits_all(false));
  EXPECT_FALSE(admits("key"));
}

TEST_F(SessionAdmissionTest, setting_admission_forgets_all_keys_and_other_settings_do_not) {
  set("admission", "second");
  admits("key");
  set("memory", "1MB");
  EXPECT_TRUE(admits("key"));
  set("admission", "second");
  EXPECT_FALSE(admits("key"));
  set("admission", "all");
  EXPECT_TRUE(admits("another"));
}

TEST_F(SessionVerifyTest, a_hit_to_be_compared_is_no_hit_and_says_so) {
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

TEST_F(SessionVerifyTest, a_caller_that_cannot_run_anything_gets_every_hit) {
  set("verify_share", "1");
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(SessionVerifyTest, plain_hits_are_left_to_the_way_that_can_compare_them) {
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

TEST_F(SessionVerifyTest, rows_to_be_compared_are_neither_found_nor_missing) {
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

TEST_F(SessionVerifyTest, what_differs_is_dropped_from_memory_and_directory) {
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

TEST_F(SessionVerifyTest, where_nothing_may_be_written_it_is_dropped_from_memory_alone) {
  here_.store("key", "wrong");
  here_.cache().flush();
  note("key", "all of it", /*may_write=*/false);
  EXPECT_TRUE(is_found(here_, "key"));
  EXPECT_EQ(here_.stat("hits_disk"), 1);
  EXPECT_EQ(here_.stat("hits_memory"), 0);
}

TEST_F(SessionVerifyTest, calls_of_a_scope_that_is_switched_off_bypass_until_it_is_cleared) {
  set("verify_share", "0.5");
  EXPECT_FALSE(bypasses());
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  EXPECT_TRUE(bypasses());
  EXPECT_EQ(here_.stat("bypassed_verify"), 1);
  EXPECT_FALSE(session()->bypasses("another scope", 1));
  EXPECT_EQ(log_.about("SWITCHED OFF").size(), 1u);
  here_.cache().clear({"scope", ""}, Cache::Tier::kAll);
  EXPECT_FALSE(bypasses());
  EXPECT_EQ(here_.stat("bypassed_verify"), 1);
}

TEST_F(SessionVerifyTest, setting_verify_share_switches_scopes_on_again) {
  for (int i = 0; i < 3; ++i) note("key", "all of it");
  ASSERT_TRUE(session()->is_switched_off("scope"));
  set("verify_share", "0.5");
  EXPECT_FALSE(session()->is_switched_off("scope"));
}

}  // namespace
}  // namespace modcache::cache
