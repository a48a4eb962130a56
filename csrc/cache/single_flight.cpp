// SPDX-License-Identifier: Apache-2.0
#include "cache/single_flight.h"

#include <thread>
#include <utility>

namespace modcache::cache {

struct SingleFlight::Lead::Flight {
  std::thread::id leader = std::this_thread::get_id();
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
      address_(other.address_),
      flight_(std::move(other.flight_)) {}

SingleFlight::Lead& SingleFlight::Lead::operator=(Lead&& other) noexcept {
  if (this != &other) {
    give_up();
    owner_ = std::exchange(other.owner_, nullptr);
    address_ = other.address_;
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
    const auto current = board.flights.find(address_);
    if (current != board.flights.end() && current->second == flight_) board.flights.erase(current);
    board.landed.notify_all();
  }
  owner_ = nullptr;
  flight_ = nullptr;
}

SingleFlight::Entered SingleFlight::enter(const Digest128& address) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  MutexLock lock(mutex_);
  Board& board = this->board();
  auto& flight = board.flights[address];
  if (flight == nullptr) {
    flight = std::make_shared<Lead::Flight>();
    Entered entered;
    entered.lead.owner_ = this;
    entered.lead.address_ = address;
    entered.lead.flight_ = flight;
    ++leads_of_this_thread;
    return entered;
  }
  if (leads_of_this_thread > 0) return {};
  const std::shared_ptr<Lead::Flight> awaited = flight;
  while (!awaited->done) {
    if (!board.landed.wait_until(mutex_, deadline)) break;
  }
  Entered entered;
  entered.look_again = awaited->done && awaited->stored;
  return entered;
}

}  // namespace modcache::cache
