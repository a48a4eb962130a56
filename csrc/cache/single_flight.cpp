// SPDX-License-Identifier: Apache-2.0
#include "cache/single_flight.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "cache/leader_watch.h"

namespace modcache::cache {

struct SingleFlight::Lead::Flight {
  std::thread::id leader = std::this_thread::get_id();
  WatchedThread watched = watched_self();
  bool done = false;  // guarded by the owner's mutex, like stored
  bool stored = false;
};

namespace {

// How many flights this thread leads. A Lead given up in another thread than the one that took
// it leaves this too high there, which only means that the thread does not wait for others.
thread_local int leads_of_this_thread = 0;

}  // namespace

SingleFlight::SingleFlight() : fork_ticket_(hold_across_fork(mutex_)) {}
SingleFlight::~SingleFlight() { stop_holding_across_fork(fork_ticket_); }

SingleFlight::Lead::Lead(Lead&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      addresses_(std::move(other.addresses_)),
      flight_(std::move(other.flight_)) {}

SingleFlight::Lead& SingleFlight::Lead::operator=(Lead&& other) noexcept {
  if (this != &other) {
    give_up();
    owner_ = std::exchange(other.owner_, nullptr);
    addresses_ = std::move(other.addresses_);
    flight_ = std::move(other.flight_);
  }
  return *this;
}

void SingleFlight::Lead::stored() {
  if (owner_ == nullptr) return;
  MutexLock lock(owner_->mutex_);
  flight_->stored = true;
  owner_->landings_.fetch_add(1, std::memory_order_release);
}

SingleFlight::Board& SingleFlight::board() {
  if (board_->fork_generation != fork_generation()) {
    [[maybe_unused]] const Board* const leaked = board_.release();
    board_ = std::make_unique<Board>();
  }
  return *board_;
}

void SingleFlight::Lead::give_up() {
  if (owner_ == nullptr) return;
  if (flight_->leader == std::this_thread::get_id()) --leads_of_this_thread;
  {
    MutexLock lock(owner_->mutex_);
    Board& board = owner_->board();
    flight_->done = true;
    for (const Digest128& address : addresses_) {
      const auto current = board.flights.find(address);
      if (current != board.flights.end() && current->second == flight_) {
        board.flights.erase(current);
      }
    }
    board.landed.notify_all();
  }
  owner_ = nullptr;
  flight_ = nullptr;
}

SingleFlight::Lead SingleFlight::lead(std::vector<Digest128> addresses,
                                      std::shared_ptr<Lead::Flight> flight) {
  Lead lead;
  lead.owner_ = this;
  lead.addresses_ = std::move(addresses);
  lead.flight_ = std::move(flight);
  ++leads_of_this_thread;
  return lead;
}

bool SingleFlight::await(Board& board, const Lead::Flight& flight,
                         std::chrono::steady_clock::time_point deadline) {
  LeaderWatch watch(flight.watched);
  while (!flight.done) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline || watch.is_blocked()) return false;
    board.landed.wait_until(mutex_, std::min(deadline, now + LeaderWatch::kInterval));
  }
  return true;
}

SingleFlight::Entered SingleFlight::enter(const Digest128& address) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  MutexLock lock(mutex_);
  Board& board = this->board();
  auto& flight = board.flights[address];
  if (flight == nullptr) {
    flight = std::make_shared<Lead::Flight>();
    Entered entered;
    entered.lead = lead({address}, flight);
    return entered;
  }
  if (leads_of_this_thread > 0) return {};
  const std::shared_ptr<Lead::Flight> awaited = flight;
  Entered entered;
  entered.look_again = await(board, *awaited, deadline) && awaited->stored;
  return entered;
}

SingleFlight::Lead SingleFlight::try_enter_all(const std::vector<Digest128>& addresses,
                                               std::vector<bool>& is_led) {
  is_led.assign(addresses.size(), false);
  auto flight = std::make_shared<Lead::Flight>();
  std::vector<Digest128> led;
  MutexLock lock(mutex_);
  Board& board = this->board();
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    is_led[i] = board.flights.emplace(addresses[i], flight).second;
    if (is_led[i]) led.push_back(addresses[i]);
  }
  if (led.empty()) return {};
  return lead(std::move(led), std::move(flight));
}

SingleFlight::Lead SingleFlight::try_enter(const Digest128& address) {
  std::vector<bool> is_led;
  return try_enter_all({address}, is_led);
}

bool SingleFlight::wait_all(const std::vector<Digest128>& addresses) {
  if (leads_of_this_thread > 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  MutexLock lock(mutex_);
  Board& board = this->board();
  // Those that are under way now; who takes the lead later is not waited for.
  std::vector<std::shared_ptr<Lead::Flight>> awaited;
  for (const Digest128& address : addresses) {
    const auto current = board.flights.find(address);
    if (current != board.flights.end()) awaited.push_back(current->second);
  }
  for (const auto& flight : awaited) {
    if (!await(board, *flight, deadline)) return false;
  }
  const auto has_stored = [](const auto& flight) { return flight->stored; };
  // One that had ended before may have stored, too.
  return awaited.size() < addresses.size() ||
         std::any_of(awaited.begin(), awaited.end(), has_stored);
}

}  // namespace modcache::cache
