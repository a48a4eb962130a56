// SPDX-License-Identifier: Apache-2.0
//
// What one call may see of the tiers, however often it looks.
#include "cache/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/cache_fixture.h"
#include "support/eventually.h"

namespace modcache::cache {
namespace {

using testing::Process;
using testing::text_entry;
using testing::text_of;

// An input on an accelerator, as a call sees it.
class Costly final : public InputSource {
 public:
  explicit Costly(std::uint64_t value) : value_(value) {}
  MeasuredInput measure(std::size_t) const override {
    MeasuredInput measured;
    measured.add_exact(&value_, sizeof value_);
    return measured;
  }
  bool is_costly() const override { return true; }

 private:
  const std::uint64_t value_;
};

EntryPtr entry_of(const std::string& text, const InputSource& input) {
  Entry entry = *text_entry(text);
  entry.sample = input.measure(0).sample();
  return std::make_shared<const Entry>(std::move(entry));
}

// No value can be read back.
class Refusing final : public testing::TextFormat {
  std::vector<Result<std::shared_ptr<const Value>>> read_all(
      Form, const FoundRows&, const std::vector<std::size_t>& rows) const override {
    std::vector<Result<std::shared_ptr<const Value>>> values;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      values.emplace_back(Status::corruption("no such value"));
    }
    return values;
  }
};

class SessionTest : public testing::CacheTest {
 protected:
  EntryPtr lookup(const std::string& key, const InputSource& input, SingleFlight::Lead& lead) {
    Request request = Process::request(key);
    request.input = &input;
    return here_.cache().session()->lookup(request, /*may_write=*/true, lead);
  }
};

TEST_F(SessionTest, a_look_up_at_once_waits_for_no_run_and_keeps_nobody_waiting) {
  const SessionPtr session = here_.cache().session();
  const Request request = Process::request("key");
  SingleFlight::Lead lead;
  EXPECT_EQ(session->lookup(request, /*may_write=*/true, lead), nullptr);
  std::thread other([&] { EXPECT_EQ(session->lookup_at_once(request, true), nullptr); });
  other.join();  // while this thread leads
  lead.give_up();
  EXPECT_EQ(session->lookup_at_once(request, true), nullptr);
  EXPECT_TRUE(session->store(request, text_entry("text")));
  EXPECT_EQ(text_of(session->lookup_at_once(request, true)), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 1);
}

// Of the calls of a scope with such inputs the first are looked at, and then a share. A call that
// is looked at is not served, after it waited, with what the other call stored for its own input.
TEST_F(SessionTest, a_call_decides_once_whether_its_input_is_compared) {
  const Costly mine(1);
  const Costly others(2);
  SingleFlight::Lead lead;
  EXPECT_EQ(lookup("key", others, lead), nullptr);
  ASSERT_TRUE(lead.is_held());
  for (std::uint64_t call = 2; call < ConflictWatch::kFirstCostlyCalls; ++call) {
    SingleFlight::Lead none;
    EXPECT_EQ(lookup("key " + std::to_string(call), mine, none), nullptr);
  }
  auto waiting = std::async(std::launch::async, [&] {
    SingleFlight::Lead own;
    return lookup("key", mine, own);
  });
  const Digest128 address = Process::request("key").id().address;
  EXPECT_TRUE(testing::eventually([&] { return lead.is_awaited(address); }));
  here_.cache().session()->store(Process::request("key"), entry_of("of another input", others));
  lead.stored();
  lead.give_up();
  EXPECT_EQ(text_of(waiting.get()), "<missing>");
  EXPECT_EQ(here_.stat("key_conflicts"), 1);
}

class NotesReadings final : public testing::TextFormat {
 public:
  std::vector<Result<std::shared_ptr<const Value>>> read_all(
      Form form, const FoundRows& found, const std::vector<std::size_t>& rows) const override {
    ++to_keep;
    return TextFormat::read_all(form, found, rows);
  }
  Result<std::shared_ptr<const Value>> read_once(const FoundRows& found,
                                                 std::size_t row) const override {
    ++once;
    return std::move(TextFormat::read_all(Form::kWhole, found, {row}).front());
  }
  mutable int to_keep = 0;
  mutable int once = 0;
};

TEST_F(SessionTest, a_value_that_memory_has_no_place_for_is_read_to_be_handed_out_once) {
  here_.store("key", std::string(1000, 'x'));
  here_.cache().flush();
  for (const char* const memory : {"0", "500", "1MB"}) {
    const NotesReadings format;
    Cache cache(format);
    ASSERT_TRUE(cache.configure({{"dir", dir_}, {"memory", memory}}).is_ok());
    const bool has_place = std::string_view(memory) == "1MB";
    for (int call = 0; call < 2; ++call) {
      SingleFlight::Lead lead;
      const EntryPtr entry = cache.session()->lookup(Process::request("key"), true, lead);
      EXPECT_EQ(text_of(entry), std::string(1000, 'x'));
    }
    EXPECT_EQ(format.once, has_place ? 0 : 2) << memory;
    EXPECT_EQ(format.to_keep, has_place ? 1 : 0) << memory;
    EXPECT_EQ(cache.stats().at("hits_disk"), has_place ? 1 : 2) << memory;
  }
}

// A whole value is read by its own call; what is brought ahead for a device are rows.
TEST_F(SessionTest, a_single_key_of_a_scope_on_a_device_is_not_read_ahead) {
  class NotesForms final : public testing::TextFormat {
   public:
    std::vector<Result<std::shared_ptr<const Value>>> read_all(
        Form form, const FoundRows& found, const std::vector<std::size_t>& rows) const override {
      ++(form == Form::kRow ? as_rows : as_whole);
      return TextFormat::read_all(form, found, rows);
    }
    mutable std::atomic<int> as_rows{0};
    mutable std::atomic<int> as_whole{0};
  };
  here_.store("key", "text");
  here_.cache().flush();
  const NotesForms format;
  Cache cache(format);
  ASSERT_TRUE(cache.configure({{"dir", dir_}}).is_ok());
  cache.place("scope", {Place::Kind::kDevice, "cuda:0"});
  SingleFlight::Lead lead;
  EXPECT_EQ(text_of(cache.session()->lookup(Process::request("key"), true, lead)), "text@cuda:0");
  cache.wait_until_read_ahead();
  EXPECT_EQ(format.as_rows, 0);
  EXPECT_EQ(format.as_whole, 1);
}

TEST_F(SessionTest, an_entry_that_is_replaced_again_and_again_is_never_missing) {
  ASSERT_TRUE(here_.configure({{"disk", "0"}, {"memory", "1MB"}}).is_ok());
  here_.store("key", "text");
  std::atomic<bool> is_done{false};
  std::thread replacing([&] {
    for (int i = 0; i < 3000; ++i) here_.store("key", "text");
    is_done = true;
  });
  int misses = 0;
  while (!is_done) misses += here_.contains("key") ? 0 : 1;
  replacing.join();
  EXPECT_EQ(misses, 0);
}

// The hit that finding it counted is taken back.
TEST_F(SessionTest, a_broken_value_is_a_miss_and_saves_nothing) {
  here_.store("key", "text", "", 1000);
  here_.cache().flush();
  const Refusing format;
  Cache cache(format);
  ASSERT_TRUE(cache.configure({{"dir", dir_}}).is_ok());
  SingleFlight::Lead lead;
  EXPECT_EQ(cache.session()->lookup(Process::request("key"), true, lead), nullptr);
  EXPECT_TRUE(lead.is_held());
  const auto stats = cache.stats();
  EXPECT_EQ(stats.at("hits_disk"), 0);
  EXPECT_EQ(stats.at("saved_us"), 0);
  EXPECT_EQ(stats.at("corrupt"), 1);
}

TEST_F(SessionTest, a_broken_value_is_no_conflict_whatever_input_it_was_stored_for) {
  here_.store("key", "text", "float32[2]");
  here_.cache().flush();
  const Refusing format;
  Cache cache(format);
  ASSERT_TRUE(cache.configure({{"dir", dir_}}).is_ok());
  SingleFlight::Lead lead;
  EXPECT_EQ(cache.session()->lookup(Process::request("key", "float32[3]"), true, lead), nullptr);
  const auto stats = cache.stats();
  EXPECT_EQ(stats.at("corrupt"), 1);
  EXPECT_EQ(stats.at("key_conflicts"), 0);
}

}  // namespace
}  // namespace modcache::cache
