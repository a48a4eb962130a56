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

SingleFlight::SingleFlight() : fork_registration_(hold_across_fork(mutex_)) {}
SingleFlight::~SingleFlight() { stop_holding_across_fork(fork_registration_); }

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
  owner_->completed_runs_.fetch_add(1, std::memory_order_release);
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

SingleFlight::Lead SingleFlight::try_enter_all(const std::vector<Digest128>& addresses,
                                               std::vector<bool>& is_led) {
  is_led.assign(addresses.size(), false);
  // Made before the lock, so that it gives up what it has, and can, should memory run out.
  Lead lead = this->lead({}, std::make_shared<Lead::Flight>());
  lead.addresses_.reserve(addresses.size());
  {
    MutexLock lock(mutex_);
    Board& board = this->board();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      is_led[i] = board.flights.emplace(addresses[i], lead.flight_).second;
      if (is_led[i]) lead.addresses_.push_back(addresses[i]);
    }
  }
  if (lead.addresses_.empty()) lead.give_up();
  return lead;
}

bool SingleFlight::wait_all(const std::vector<Digest128>& addresses) {
  if (leads_of_this_thread > 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  MutexLock lock(mutex_);
  Board& board = this->board();
  // The flights that are under way now. Later ones are not waited for.
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
