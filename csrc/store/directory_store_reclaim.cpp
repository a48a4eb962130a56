// SPDX-License-Identifier: Apache-2.0
//
// DirectoryStore: making room. Segments are emptied one after another: what stays is written anew
// and committed, then the old segment is gone (gone_segments.h). Whoever dies in between leaves a
// segment with more dead space in it than before, and nothing else.
#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/without_throwing.h"
#include "store/directory_store.h"
#include "store/index/tombstone.h"
#include "store/reclaim/gone_segments.h"
#include "store/reclaim/reclaim_pass.h"

namespace modcache::store {
namespace {

// Entries of one step; while they are committed nobody else of any process can commit.
constexpr std::size_t kStepEntries = 1024;
// Of what there is: what index and log grow by when entries are moved.
constexpr std::uint64_t kGrowthShare = 64;
// How often those who wait for room, and for readers to let go, look again.
constexpr std::chrono::milliseconds kLookAgain{20};
constexpr std::chrono::milliseconds kGoneCheck{250};
// Writers look four times a second whether they are asked to leave their segments.
constexpr std::chrono::seconds kLeaving{1};

// After everything that could leave has left and it was not enough, nobody waits for so long.
constexpr std::int64_t kExhaustedMs = 1000;

}  // namespace

std::int64_t DirectoryStore::expired_before_us() const {
  if (options_.max_age_us <= 0) return std::numeric_limits<std::int64_t>::min();
  return now_us() - options_.max_age_us;
}

bool DirectoryStore::is_exhausted() const { return steady_now_ms() < exhausted_until_ms_; }

void DirectoryStore::ask_for_room(std::uint64_t size_bytes, bool may_evict) {
  MutexLock lock(asked_mutex_);
  room_asked_bytes_ = std::max(room_asked_bytes_, size_bytes);
  may_evict_ = may_evict_ || may_evict;
  if (!is_asked_) asked_changed_.notify_all();
  is_asked_ = true;
}

void DirectoryStore::look_for_dead_space() {
  if (dead_space_looks_.is_due(counted_removals(), steady_now_ms())) ask_for_room(0, false);
}

void DirectoryStore::wait_for_room(std::uint64_t size_bytes, bool may_evict,
                                   Clock::time_point deadline) {
  ask_for_room(size_bytes, may_evict);
  while (true) {
    budget_.measure();
    if (budget_.fits(size_bytes) || Clock::now() >= deadline) return;
    MutexLock lock(asked_mutex_);
    const std::uint64_t seen = passes_;
    const auto look_again = Clock::now() + kLookAgain;
    while (passes_ == seen && asked_changed_.wait_until(asked_mutex_, look_again)) {
    }
    if (passes_ != seen && (!may_evict || is_exhausted())) return;
    if (!is_asked_) {
      is_asked_ = true;
      room_asked_bytes_ = std::max(room_asked_bytes_, size_bytes);
      may_evict_ = may_evict_ || may_evict;
      asked_changed_.notify_all();
    }
  }
}

// What was asked for since the last time; nothing, when segments that are gone are to be looked
// at again.
DirectoryStore::Asked DirectoryStore::wait_until_asked(bool has_gone) {
  MutexLock lock(asked_mutex_);
  const auto until = Clock::now() + kGoneCheck;
  while (!is_asked_ && !is_reclaim_stopping_) {
    if (!has_gone) {
      asked_changed_.wait(asked_mutex_);
    } else if (!asked_changed_.wait_until(asked_mutex_, until)) {
      break;
    }
  }
  return {std::exchange(is_asked_, false), std::exchange(may_evict_, false),
          std::exchange(room_asked_bytes_, 0)};
}

void DirectoryStore::reclaim_until_stopped() {
  bool has_gone = true;  // perhaps left by a process that died
  while (true) {
    const Asked asked = wait_until_asked(has_gone);
    if (is_reclaim_stopping_) return;
    if (asked.is_asked) {
      // What waits to be written takes its room at once; there is to be some left after it. Dead
      // space costs nobody anything: as much as opens the directory to all.
      const std::uint64_t least = asked.may_evict ? budget_.segment_bytes() : budget_.roomy_bytes();
      const std::uint64_t wanted = std::max(asked.room_bytes, least) + queue_.size_bytes();
      const std::uint64_t budget = budget_.budget_bytes();
      auto evicted = without_throwing([&] {
        return reclaim(budget - std::min(budget, wanted), asked.may_evict, Chase::kAsLargeAsItWas);
      });
      if (evicted.status().code() == StatusCode::kCorruption) detach_broken_database();
    }
    auto gone = remove_gone(directory_);
    has_gone = gone.is_ok() && gone.value().held_bytes > 0;
    MutexLock lock(asked_mutex_);
    ++passes_;
    asked_changed_.notify_all();
  }
}

void DirectoryStore::stop_reclaiming() {
  {
    MutexLock lock(asked_mutex_);
    is_reclaim_stopping_ = true;
    asked_changed_.notify_all();
  }
  if (reclaimer_.joinable()) reclaimer_.join();
}

// Two atomic loads as long as nothing went.
void DirectoryStore::let_go_of_gone() {
  if (opened_.control == nullptr) return;
  const std::uint64_t reclaims = opened_.control->reclaims();
  if (seen_reclaims_.load(std::memory_order_relaxed) == reclaims) return;
  if (seen_reclaims_.exchange(reclaims) != reclaims) readers_.forget_gone();
}

Result<Evicted> DirectoryStore::evict(std::uint64_t to_bytes) {
  MODCACHE_RETURN_IF_ERROR(check_writable());
  MODCACHE_RETURN_IF_ERROR(flush());
  index_->catch_up_ticks();
  auto evicted = reclaim(to_bytes, true, Chase::kAsLargeAsItIs);
  if (evicted.is_ok() && evicted.value().is_hindered) opened_.control->add_leave_request();
  const auto deadline = Clock::now() + kLeaving;
  while (evicted.is_ok() && evicted.value().is_hindered && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLeaving / 8);
    const Evicted before = evicted.value();
    evicted = reclaim(to_bytes, true, Chase::kAsLargeAsItIs);
    if (!evicted.is_ok()) break;
    evicted.value().entries += before.entries;
    evicted.value().freed_bytes += before.freed_bytes;
  }
  if (!evicted.is_ok()) return as_index_failure(evicted.status());
  return evicted;
}

Result<Evicted> DirectoryStore::reclaim(std::uint64_t to_bytes, bool may_evict, Chase chase) {
  MutexLock lock(reclaim_mutex_);
  // Whoever reclaims holds the file `lock`: two at once would make more leave than need be.
  auto right = directory_.file_system().open(directory_.lock_path(), fs::OpenMode::kReadWrite);
  if (!right.is_ok()) return right.status();
  const auto deadline = Clock::now() + std::chrono::milliseconds(options_.patience_ms);
  while (true) {
    auto is_ours = right.value()->try_hold(fs::File::Hold::kExclusive);
    if (!is_ours.is_ok() || is_ours.value()) break;
    if (Clock::now() >= deadline) return Status::busy("another process is making room");
    std::this_thread::sleep_for(kLookAgain / 4);
  }
  Pass pass;
  pass.to_bytes = to_bytes;
  pass.may_refuse = chase == Chase::kAsLargeAsItWas;
  if (chase == Chase::kAsLargeAsItWas) pass.wanted_bytes = excess_bytes(pass);
  pass.spares_the_rest = chase == Chase::kAsLargeAsItIs;
  pass.expired_before_us = expired_before_us();
  Status status;
  // The last: so much is in use that nothing else helps. What others write meanwhile is no reason
  // to take more than was to go.
  for (const Sparing sparing : {Sparing::kAllLive, Sparing::kHighRanks, Sparing::kNone}) {
    pass.evicted.is_hindered = false;
    status = run(pass, sparing);
    if (!status.is_ok() || pass.is_reached || !may_evict) break;
  }
  if (status.is_ok() && may_evict && (!pass.is_reached || pass.is_held)) {
    exhausted_until_ms_ = steady_now_ms() + kExhaustedMs;
  }
  if (pass.evicted.entries > 0 && options_.on_evicted) options_.on_evicted(pass.evicted.entries);
  if (!status.is_ok()) return status;
  if (pass.is_reached) pass.evicted.is_hindered = false;
  return pass.evicted;
}

std::uint64_t DirectoryStore::excess_bytes(Pass& pass) {
  let_go_of_gone();
  auto gone = remove_gone(directory_);
  if (gone.is_ok()) {
    pass.evicted.freed_bytes += static_cast<std::int64_t>(gone.value().freed_bytes);
  }
  budget_.measure();
  const Excess excess =
      excess_over(pass.to_bytes, budget_.used_bytes(), gone.is_ok() ? gone.value() : GoneSegments(),
                  pass.may_refuse ? budget_.budget_bytes() : 0);
  pass.is_held = excess.is_held;
  pass.held_bytes = gone.is_ok() ? gone.value().held_bytes : 0;
  return excess.bytes;
}

// Or enough was gained: others fill it meanwhile, and whoever still needs room asks again.
bool DirectoryStore::is_reached(Pass& pass) {
  pass.is_reached = excess_bytes(pass) == 0 || pass.gained_bytes >= pass.wanted_bytes;
  return pass.is_reached;
}

Status DirectoryStore::run(Pass& pass, Sparing sparing) {
  if (is_reached(pass)) return Status::ok();
  if (pass.most_bytes == 0) {
    // Without what readers hold: else the directory would grow with each pass until they let go.
    const std::uint64_t used =
        budget_.used_bytes() - std::min(budget_.used_bytes(), pass.held_bytes);
    pass.most_bytes = std::max(used, budget_.budget_bytes()) + budget_.segment_bytes() / 4 * 3;
  }
  auto candidates = survey(pass, sparing);
  if (!candidates.is_ok()) return candidates.status();
  for (const SegmentUse& candidate : candidates.value()) {
    if (is_reclaim_stopping_ || !is_attached()) return Status::ok();
    const std::uint64_t moved_before = pass.moved_bytes;
    if (pass.spares_the_rest) {
      const std::uint64_t growth = std::min(budget_.segment_bytes(), budget_.used_bytes());
      pass.enough_bytes = excess_bytes(pass) + growth / kGrowthShare;
    }
    pass.gone_bytes = candidate.size_bytes - std::min(candidate.size_bytes, candidate.live_bytes);
    const Status status = empty(pass, sparing, candidate.id);
    if (status.is_ok()) {
      const std::uint64_t moved = pass.moved_bytes - moved_before;
      pass.gained_bytes += candidate.size_bytes - std::min(candidate.size_bytes, moved);
    }
    if (status.code() == StatusCode::kBusy) pass.evicted.is_hindered = true;
    // Somebody writes there, or was quicker, or there is no room for what would stay.
    const bool may_go_on =
        status.is_ok() || status.is_not_found() || status.code() == StatusCode::kBusy ||
        status.code() == StatusCode::kNoSpace || status.code() == StatusCode::kUnsupportedVersion;
    if (!may_go_on) return status;
    if (is_reached(pass)) break;
  }
  return Status::ok();
}

Status DirectoryStore::empty(Pass& pass, Sparing sparing, std::uint64_t segment) {
  {
    MutexLock lock(write_mutex_);
    if (segment == segments_.segment()) {
      segments_.leave_segment();
      segments_.release_left();
    }
  }
  auto taken = Victim::take(directory_, segment);
  if (!taken.is_ok()) return taken.status();
  std::unique_ptr<Victim> victim = std::move(taken).value();
  while (true) {
    auto records = victim->next(kStepEntries);
    if (!records.is_ok()) return records.status();
    if (records.value().empty()) break;
    MODCACHE_RETURN_IF_ERROR(settle(pass, sparing, *victim, records.value()));
    if (is_reclaim_stopping_) return Status::busy("the store is closing");
  }
  return finish(pass, *victim);
}

bool DirectoryStore::stays(const Pass& pass, Sparing sparing, const Victim::Record& record,
                           policy::Usage& usage) {
  const bool is_expired = record.head.stored_at_us < pass.expired_before_us;
  const bool is_enough = sparing == Sparing::kAllLive || pass.gone_bytes >= pass.enough_bytes;
  const std::uint64_t rank = is_expired                  ? kAboveAllRanks
                             : is_enough                 ? 0
                             : sparing == Sparing::kNone ? kAboveAllRanks
                                                         : pass.rank;
  const bool is_spared = this->is_spared(address_of(record.head.context, record.key),
                                         record.head.sequence, rank, usage);
  return is_spared || (is_enough && !is_expired);
}

}  // namespace modcache::store
