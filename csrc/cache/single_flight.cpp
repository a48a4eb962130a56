// SPDX-License-Identifier: Apache-2.0
#include "cache/single_flight.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace modcache::cache {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How many flights this thread leads. A Lead given up in another thread than the one that took
// it leaves this too high there, which only means that the thread does not wait for others.
thread_local int leads_of_this_thread = 0;

constexpr int kMostDoublings = 16;

}  // namespace

// All of it is guarded by the owner's mutex.
struct SingleFlight::Lead::Flight {
  std::vector<Digest128> addresses;  // at which it stands on the board
  std::unordered_set<Digest128, Digest128Hash> awaited;
  SteadyClock::time_point since = SteadyClock::now();  // when others were let out last
  int runners = 1;
  int waiters = 0;
  int places = 0;    // for waiters that are let out
  int releases = 0;  // how often some were
  bool done = false;
  bool stored = false;
  bool kept_nothing = false;
};

SingleFlight::SingleFlight() : fork_registration_(hold_across_fork(mutex_)) {}
SingleFlight::~SingleFlight() { stop_holding_across_fork(fork_registration_); }

SingleFlight::Lead::Lead(Lead&& other) noexcept { *this = std::move(other); }

SingleFlight::Lead& SingleFlight::Lead::operator=(Lead&& other) noexcept {
  if (this == &other) return *this;
  give_up();
  owner_ = std::exchange(other.owner_, nullptr);
  flight_ = std::move(other.flight_);
  thread_ = other.thread_;
  has_stored_ = other.has_stored_;
  has_kept_nothing_ = other.has_kept_nothing_;
  return *this;
}

void SingleFlight::Lead::stored() {
  if (owner_ == nullptr) return;
  has_stored_ = true;
  owner_->completed_runs_.fetch_add(1, std::memory_order_release);
}

void SingleFlight::Lead::kept_nothing() { has_kept_nothing_ = true; }

bool SingleFlight::Lead::is_awaited(const Digest128& address) const {
  if (owner_ == nullptr) return false;
  MutexLock lock(owner_->mutex_);
  return flight_->awaited.count(address) != 0;
}

void SingleFlight::Lead::give_up() {
  if (owner_ == nullptr) return;
  if (thread_ == std::this_thread::get_id()) --leads_of_this_thread;
  {
    MutexLock lock(owner_->mutex_);
    flight_->stored = flight_->stored || has_stored_;
    flight_->kept_nothing = flight_->kept_nothing || has_kept_nothing_;
    owner_->end_run(owner_->board(), *flight_);
  }
  owner_ = nullptr;
  flight_ = nullptr;
}

SingleFlight::Board& SingleFlight::board() {
  if (board_->fork_generation != fork_generation()) {
    [[maybe_unused]] const Board* const leaked = board_.release();
    board_ = std::make_unique<Board>();
  }
  return *board_;
}

// A run that failed is tried again as long as somebody waits.
void SingleFlight::end_run(Board& board, Flight& flight) {
  if (flight.done) return;
  --flight.runners;
  const bool has_outcome = flight.stored || flight.kept_nothing;
  if (has_outcome || (flight.runners == 0 && flight.waiters == 0)) {
    land(board, flight);
  } else if (flight.runners == 0 && flight.places == 0) {
    let_more_run(board, flight, SteadyClock::now());
  }
}

void SingleFlight::land(Board& board, Flight& flight) {
  flight.done = true;
  for (const Digest128& address : flight.addresses) {
    const auto current = board.flights.find(address);
    if (current != board.flights.end() && current->second.get() == &flight) {
      board.flights.erase(current);
    }
  }
  board.landed.notify_all();
}

// Lets out one waiter, then one more, then two, then four.
void SingleFlight::let_more_run(Board& board, Flight& flight, Time now) {
  flight.places = 1 << std::clamp(flight.releases - 1, 0, kMostDoublings);
  ++flight.releases;
  flight.since = now;
  board.landed.notify_all();
}

SingleFlight::Lead SingleFlight::lead_of(FlightPtr flight) {
  Lead lead;
  lead.owner_ = this;
  lead.flight_ = std::move(flight);
  lead.thread_ = std::this_thread::get_id();
  ++leads_of_this_thread;
  return lead;
}

SingleFlight::Outcome SingleFlight::await(Board& board, Flight& flight, Time deadline,
                                          Duration patience) {
  Outcome outcome = Outcome::kLanded;
  ++flight.waiters;
  while (!flight.done) {
    const auto now = SteadyClock::now();
    if (flight.places == 0 && now - flight.since >= patience) let_more_run(board, flight, now);
    if (flight.places > 0) {
      --flight.places;
      ++flight.runners;
      outcome = Outcome::kJoins;
      break;
    }
    if (now >= deadline) {
      outcome = Outcome::kTimedOut;
      break;
    }
    board.landed.wait_until(mutex_, std::min<Time>(deadline, flight.since + patience));
  }
  --flight.waiters;
  // The last waiter leaves a flight of which nobody runs anything any more.
  if (!flight.done && flight.runners == 0 && flight.waiters == 0) land(board, flight);
  return outcome;
}

SingleFlight::Lead SingleFlight::try_enter_all(std::span<const Digest128> addresses,
                                               std::vector<bool>& is_led) {
  is_led = std::vector<bool>(addresses.size(), false);
  // Made before the lock, so that it gives up what it has, and can, should memory run out.
  const auto flight = std::make_shared<Flight>();
  flight->addresses.reserve(addresses.size());
  Lead lead = lead_of(flight);
  {
    MutexLock lock(mutex_);
    Board& board = this->board();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      is_led[i] = board.flights.emplace(addresses[i], flight).second;
      if (is_led[i]) flight->addresses.push_back(addresses[i]);
    }
  }
  if (flight->addresses.empty()) lead.give_up();
  return lead;
}

SingleFlight::Waited SingleFlight::wait_all(std::span<const Digest128> addresses,
                                            Duration patience) {
  Waited waited;
  if (leads_of_this_thread > 0) return waited;
  const auto deadline = SteadyClock::now() + kLongestWait;
  FlightPtr joined;
  {
    MutexLock lock(mutex_);
    Board& board = this->board();
    // The flights that are under way now. Later ones are not waited for.
    std::vector<FlightPtr> awaited;
    for (const Digest128& address : addresses) {
      const auto current = board.flights.find(address);
      if (current == board.flights.end()) continue;
      awaited.push_back(current->second);
      current->second->awaited.insert(address);
    }
    // One that had ended before may have stored, too.
    bool has_stored = awaited.size() < addresses.size();
    for (const FlightPtr& flight : awaited) {
      const Outcome outcome = await(board, *flight, deadline, patience);
      if (outcome == Outcome::kTimedOut) return waited;
      if (outcome == Outcome::kJoins && has_stored) {
        // A batch looks up first what it need not run, and lets another one run this.
        end_run(board, *flight);
        break;
      }
      if (outcome == Outcome::kJoins) {
        joined = flight;
        break;
      }
      has_stored = has_stored || flight->stored;
    }
    waited.look_again = joined == nullptr && has_stored;
  }
  if (joined != nullptr) waited.lead = lead_of(std::move(joined));
  return waited;
}

}  // namespace modcache::cache
