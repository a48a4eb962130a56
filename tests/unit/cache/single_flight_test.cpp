// SPDX-License-Identifier: Apache-2.0
#include "cache/single_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "support/child_process.h"
#include "support/eventually.h"

namespace modcache::cache {
namespace {

using Lead = SingleFlight::Lead;
using Waited = SingleFlight::Waited;
using std::chrono::milliseconds;
using testing::eventually;
using Clock = std::chrono::steady_clock;

const Digest128 kKey{1, 2};
const Digest128 kOtherKey{3, 4};
// Long enough for a thread that does not wait to show it; a thread that waits is not delayed.
constexpr std::chrono::milliseconds kAWhile{20};

constexpr SingleFlight::Duration kLongTime = std::chrono::seconds(30);

// The way in of a call: it leads, or it has waited for whoever leads, and may run beside it.
struct Entered {
  Lead lead;
  bool look_again = false;
};

// `awaited`: an address of the lead that nobody else waits for.
bool begins_to_wait(const Lead& lead, const Digest128& awaited) {
  return eventually([&] { return lead.is_awaited(awaited); });
}

template <typename Outcome>
bool is_waiting(const std::future<Outcome>& outcome) {
  return outcome.wait_for(kAWhile) == std::future_status::timeout;
}

class SingleFlightTest : public ::testing::Test {
 protected:
  Lead try_enter_all(const std::vector<Digest128>& addresses) {
    std::vector<bool> is_led;
    return flights_.try_enter_all(addresses, is_led);
  }
  Lead try_enter(const Digest128& address) { return try_enter_all({address}); }
  Waited wait_for_lead(const Digest128& address, SingleFlight::Duration patience = kLongTime) {
    return flights_.wait_all(std::vector{address}, patience);
  }
  Entered enter_all(const std::vector<Digest128>& addresses,
                    SingleFlight::Duration patience = kLongTime) {
    Entered entered;
    entered.lead = try_enter_all(addresses);
    if (entered.lead.is_held()) return entered;
    Waited waited = flights_.wait_all(addresses, patience);
    entered.look_again = waited.look_again;
    entered.lead = std::move(waited.lead);
    return entered;
  }
  Entered enter(const Digest128& address) { return enter_all({address}); }
  // Enters from a thread of its own.
  std::future<Entered> enter_elsewhere(const std::vector<Digest128>& addresses) {
    return std::async(std::launch::async, [this, addresses] { return enter_all(addresses); });
  }
  // Two threads that wait for the key of a lead, which has the other key, too: it shows that the
  // second of them waits.
  struct TwoWaiting {
    std::future<Entered> second;
    std::future<Entered> third;
    bool are_waiting() const { return is_waiting(second) && is_waiting(third); }
  };
  TwoWaiting let_two_wait_for(const Lead& lead) {
    TwoWaiting two;
    two.second = enter_elsewhere({kKey});
    EXPECT_TRUE(begins_to_wait(lead, kKey));
    two.third = enter_elsewhere({kKey, kOtherKey});
    EXPECT_TRUE(begins_to_wait(lead, kOtherKey));
    return two;
  }
  // Whether a thread that leads nothing gets the lead at once.
  bool is_free(const Digest128& address) {
    return std::async(std::launch::async, [this, address] { return enter(address).lead.is_held(); })
        .get();
  }

  SingleFlight flights_;
};

TEST_F(SingleFlightTest, the_first_leads_and_the_key_is_free_after_it) {
  {
    const auto first = enter(kKey);
    EXPECT_TRUE(first.lead.is_held());
    EXPECT_FALSE(first.look_again);
  }
  EXPECT_TRUE(is_free(kKey));
}

TEST_F(SingleFlightTest, keys_do_not_wait_for_each_other) {
  const auto first = enter(kKey);
  EXPECT_TRUE(is_free(kOtherKey));
}

TEST_F(SingleFlightTest, others_wait_and_look_again_when_something_was_stored) {
  auto first = enter_all({kKey, kOtherKey});
  TwoWaiting two = let_two_wait_for(first.lead);
  EXPECT_TRUE(two.are_waiting());
  first.lead.stored();
  EXPECT_TRUE(two.are_waiting()) << "the lead is what they wait for";
  first.lead.give_up();
  for (auto* waiter : {&two.second, &two.third}) {
    const auto entered = waiter->get();
    EXPECT_TRUE(entered.look_again);
    EXPECT_FALSE(entered.lead.is_held());
  }
}

TEST_F(SingleFlightTest, where_nothing_may_be_kept_the_waiters_go_on_side_by_side) {
  std::optional<Entered> first(enter_all({kKey, kOtherKey}));
  TwoWaiting two = let_two_wait_for(first->lead);
  EXPECT_TRUE(two.are_waiting());
  first->lead.kept_nothing();
  first.reset();
  const auto a = two.second.get();
  const auto b = two.third.get();
  EXPECT_FALSE(a.look_again || b.look_again);
  EXPECT_FALSE(a.lead.is_held() || b.lead.is_held()) << "one would wait for the other";
}

TEST_F(SingleFlightTest, many_threads_run_one_key_once) {
  std::atomic<bool> is_stored{false};
  std::atomic<int> runs{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      while (!is_stored) {
        auto entered = enter(kKey);
        if (entered.look_again) continue;
        if (!is_stored) {  // a run may have landed before this thread got the lead
          ++runs;
          is_stored = true;
        }
        entered.lead.stored();
        return;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, 1);
}

TEST_F(SingleFlightTest, counts_the_runs_that_stored_something) {
  enter(kKey).lead.stored();
  EXPECT_EQ(flights_.completed_runs(), 1u);
  enter(kKey).lead.give_up();
  EXPECT_EQ(flights_.completed_runs(), 1u);
}

TEST_F(SingleFlightTest, a_thread_that_leads_already_does_not_wait) {
  std::promise<void> done;
  std::promise<void> other_leads;
  std::thread other([&] {
    const auto lead = enter(kOtherKey);
    other_leads.set_value();
    done.get_future().wait();
  });
  other_leads.get_future().wait();
  const auto outer = enter(kKey);
  const auto inner = enter(kOtherKey);  // were this to wait, the test would hang
  EXPECT_FALSE(inner.lead.is_held());
  EXPECT_FALSE(inner.look_again);
  const auto itself = enter(kKey);
  EXPECT_FALSE(itself.lead.is_held());
  done.set_value();
  other.join();
}

TEST_F(SingleFlightTest, a_thread_that_led_once_waits_again) {
  enter(kKey).lead.give_up();
  auto first = enter(kKey);
  auto second = std::async(std::launch::async, [&] {
    enter(kOtherKey).lead.give_up();
    return enter(kKey);
  });
  EXPECT_TRUE(begins_to_wait(first.lead, kKey));
  EXPECT_TRUE(is_waiting(second));
  first.lead.give_up();
  (void)second.get();
}

TEST_F(SingleFlightTest, a_lead_that_moves_is_given_up_once_by_its_last_holder) {
  auto first = enter(kKey);
  Lead holder = std::move(first.lead);
  EXPECT_FALSE(first.lead.is_held());
  first.lead.give_up();
  EXPECT_TRUE(holder.is_held());
  auto second = enter_elsewhere({kKey});
  EXPECT_TRUE(begins_to_wait(holder, kKey));
  EXPECT_TRUE(is_waiting(second));
  holder = Lead();
  EXPECT_FALSE(second.get().look_again);
  EXPECT_TRUE(is_free(kKey));
}

// Neither thread is this one: it would go on as one that leads, in later tests, too.
TEST_F(SingleFlightTest, a_lead_may_be_given_up_in_another_thread) {
  auto first = std::async(std::launch::async, [&] { return enter(kKey); }).get();
  auto second = enter_elsewhere({kKey});
  EXPECT_TRUE(begins_to_wait(first.lead, kKey));
  EXPECT_TRUE(is_waiting(second));
  std::thread([lead = std::move(first.lead)]() mutable { lead.stored(); }).join();
  EXPECT_TRUE(second.get().look_again);
  EXPECT_TRUE(is_free(kKey));
}

TEST_F(SingleFlightTest, a_forked_child_starts_without_the_flights_of_its_parent) {
  std::promise<void> done;
  std::promise<void> other_leads;
  std::thread other([&] {
    const auto lead = enter(kKey);
    other_leads.set_value();
    done.get_future().wait();
  });
  other_leads.get_future().wait();
  testing::ChildProcess child([&] { return enter(kKey).lead.is_held() ? 0 : 1; });
  EXPECT_EQ(child.wait(), 0);
  done.set_value();
  other.join();
}

TEST_F(SingleFlightTest, a_batch_leads_what_nobody_else_leads_and_does_not_wait) {
  const auto other = enter(kOtherKey);
  std::vector<bool> is_led;
  Lead lead = flights_.try_enter_all(std::vector{kKey, kOtherKey}, is_led);
  EXPECT_TRUE(lead.is_held());
  EXPECT_EQ(is_led, (std::vector<bool>{true, false}));
  EXPECT_FALSE(try_enter(kKey).is_held());
  EXPECT_FALSE(flights_.try_enter_all(std::vector{kKey, kOtherKey}, is_led).is_held());
  lead.give_up();
  EXPECT_TRUE(is_free(kKey));
  EXPECT_FALSE(try_enter(kOtherKey).is_held());
}

TEST_F(SingleFlightTest, single_callers_wait_for_a_batch_as_for_anybody) {
  Lead lead = try_enter_all({kKey, kOtherKey});
  auto first = enter_elsewhere({kKey});
  auto second = enter_elsewhere({kOtherKey});
  EXPECT_TRUE(begins_to_wait(lead, kKey) && begins_to_wait(lead, kOtherKey));
  EXPECT_TRUE(is_waiting(first) && is_waiting(second));
  lead.stored();
  lead.give_up();
  EXPECT_TRUE(first.get().look_again);
  EXPECT_TRUE(second.get().look_again);
}

TEST_F(SingleFlightTest, waits_until_nobody_leads_any_of_many) {
  Lead first = try_enter(kKey);
  Lead second = try_enter(kOtherKey);
  auto waited = std::async(std::launch::async, [this] {
    return flights_.wait_all(std::vector{kKey, kOtherKey}).look_again;
  });
  EXPECT_TRUE(begins_to_wait(second, kOtherKey));
  first.stored();
  first.give_up();
  EXPECT_TRUE(is_waiting(waited));
  second.give_up();
  EXPECT_TRUE(waited.get()) << "the first one stored something";
}

TEST_F(SingleFlightTest, looking_again_is_of_no_use_where_nothing_was_stored) {
  Lead lead = try_enter(kKey);
  auto waited = std::async(std::launch::async, [this] { return wait_for_lead(kKey).look_again; });
  EXPECT_TRUE(begins_to_wait(lead, kKey));
  EXPECT_TRUE(is_waiting(waited));
  lead.kept_nothing();
  lead.give_up();
  EXPECT_FALSE(waited.get());
  // From a thread of its own: this one may have counted a lead that ended elsewhere.
  EXPECT_TRUE(
      std::async(std::launch::async, [this] { return wait_for_lead(kKey).look_again; }).get())
      << "a run that ended before may have stored something";
}

TEST_F(SingleFlightTest, a_thread_that_leads_a_batch_does_not_wait) {
  auto other = std::async(std::launch::async, [this] { return try_enter(kOtherKey); }).get();
  Lead lead = try_enter(kKey);
  EXPECT_FALSE(wait_for_lead(kOtherKey).look_again);
  EXPECT_FALSE(enter(kOtherKey).lead.is_held());
  EXPECT_TRUE(other.is_held());
}

}  // namespace
}  // namespace modcache::cache
