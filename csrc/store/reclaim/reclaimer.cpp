// SPDX-License-Identifier: Apache-2.0
#include "store/reclaim/reclaimer.h"

#include <algorithm>

#include "base/without_throwing.h"
#include "store/reclaim/reclaim_plan.h"
#include "store/segment/retired_segments.h"

namespace modcache::store {
namespace {

// Index and log grow by this part of what there is when entries are moved.
constexpr std::uint64_t kGrowthShare = 64;
// A pass looks this often whether another process has ended its own.
constexpr std::chrono::milliseconds kLookForRight{5};
// Writers look four times in this time whether they are asked to leave their segments.
constexpr std::chrono::seconds kLeaving{1};

}  // namespace

Reclaimer::Reclaimer(AttachedDirectory& attached, Committer& committer, DiskBudget& budget,
                     WriteQueue& queue, UsageTracker& usage)
    : attached_(attached),
      committer_(committer),
      budget_(budget),
      queue_(queue),
      requests_(budget, attached.options().max_age_us),
      survey_(attached, budget, usage),
      emptier_(attached, committer, budget, usage, requests_) {}

Reclaimer::~Reclaimer() {
  requests_.stop();
  if (thread_.joinable()) thread_.join();
}

void Reclaimer::start() {
  thread_ = std::thread([this] { reclaim_until_stopped(); });
}

void Reclaimer::reclaim_until_stopped() {
  bool has_retired = true;  // perhaps left by a process that died
  while (true) {
    const RoomRequests::Asked asked = requests_.wait_until_asked(has_retired);
    if (requests_.is_stopping()) return;
    if (asked.is_asked) {
      // Queued puts take their room at once, and some is to be left after them. Removing dead space
      // costs nobody an entry, so enough of it goes that the directory is open to all again.
      const std::uint64_t least = asked.may_evict ? budget_.segment_bytes() : budget_.roomy_bytes();
      const std::uint64_t wanted = std::max(asked.room_bytes, least) + queue_.size_bytes();
      const std::uint64_t budget = budget_.budget_bytes();
      auto evicted = without_throwing([&] {
        return reclaim(budget - std::min(budget, wanted), asked.may_evict, Chase::kAsLargeAsItWas);
      });
      if (evicted.status().code() == StatusCode::kCorruption) committer_.detach_broken_database();
    }
    auto retired = remove_retired(attached_.directory());
    has_retired = retired.is_ok() && retired.value().held_bytes > 0;
    requests_.finish_pass();
  }
}

Result<Evicted> Reclaimer::evict(std::uint64_t to_bytes) {
  attached_.index().catch_up_ticks();
  auto evicted = reclaim(to_bytes, true, Chase::kAsLargeAsItIs);
  if (evicted.is_ok() && evicted.value().is_hindered) attached_.control().add_leave_request();
  const auto deadline = Clock::now() + kLeaving;
  while (evicted.is_ok() && evicted.value().is_hindered && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLeaving / 8);
    const Evicted before = evicted.value();
    evicted = reclaim(to_bytes, true, Chase::kAsLargeAsItIs);
    if (!evicted.is_ok()) break;
    evicted.value().entries += before.entries;
    evicted.value().freed_bytes += before.freed_bytes;
  }
  if (!evicted.is_ok()) return committer_.as_index_failure(evicted.status());
  return evicted;
}

Result<Evicted> Reclaimer::reclaim(std::uint64_t to_bytes, bool may_evict, Chase chase) {
  MutexLock lock(pass_mutex_);
  const Directory& directory = attached_.directory();
  const StoreOptions& options = attached_.options();
  // Only the process that holds the file `lock` reclaims, because two at once would evict more
  // entries than necessary.
  MODCACHE_ASSIGN_OR_RETURN(
      auto right, directory.file_system().open(directory.lock_path(), fs::OpenMode::kReadWrite));
  const auto deadline = Clock::now() + std::chrono::milliseconds(options.patience_ms);
  while (true) {
    auto is_ours = right->try_hold(fs::File::Hold::kExclusive);
    if (!is_ours.is_ok() || is_ours.value()) break;
    if (Clock::now() >= deadline) return Status::busy("another process is making room");
    std::this_thread::sleep_for(kLookForRight);
  }
  ReclaimPass pass;
  pass.to_bytes = to_bytes;
  pass.may_refuse = chase == Chase::kAsLargeAsItWas;
  if (chase == Chase::kAsLargeAsItWas) pass.wanted_bytes = excess_bytes(pass);
  pass.spares_the_rest = chase == Chase::kAsLargeAsItIs;
  pass.expired_before_us = attached_.expired_before_us();
  Status status;
  // The last of these: so much is in use that nothing else helps. What others write meanwhile is no
  // reason to take more than was to go.
  for (const Sparing sparing : {Sparing::kAllLive, Sparing::kHighRanks, Sparing::kNone}) {
    pass.evicted.is_hindered = false;
    pass.sparing = sparing;
    status = run(pass);
    if (!status.is_ok() || pass.is_reached || !may_evict) break;
  }
  if (status.is_ok() && may_evict && (!pass.is_reached || pass.is_held)) requests_.set_exhausted();
  if (pass.evicted.entries > 0 && options.on_evicted) options.on_evicted(pass.evicted.entries);
  if (!status.is_ok()) return status;
  if (pass.is_reached) pass.evicted.is_hindered = false;
  return pass.evicted;
}

std::uint64_t Reclaimer::excess_bytes(ReclaimPass& pass) {
  attached_.forget_retired();
  auto retired = remove_retired(attached_.directory());
  if (retired.is_ok()) {
    pass.evicted.freed_bytes += static_cast<std::int64_t>(retired.value().freed_bytes);
  }
  budget_.measure();
  const Excess excess = excess_over(pass.to_bytes, budget_.used_bytes(),
                                    retired.is_ok() ? retired.value() : RetiredSegments(),
                                    pass.may_refuse ? budget_.budget_bytes() : 0);
  pass.is_held = excess.is_held;
  pass.held_bytes = retired.is_ok() ? retired.value().held_bytes : 0;
  return excess.bytes;
}

// A pass that gained enough has reached its end too: others fill the room meanwhile, and whoever
// still needs some asks again.
bool Reclaimer::is_reached(ReclaimPass& pass) {
  pass.is_reached = excess_bytes(pass) == 0 || pass.gained_bytes >= pass.wanted_bytes;
  return pass.is_reached;
}

Status Reclaimer::run(ReclaimPass& pass) {
  if (is_reached(pass)) return Status::ok();
  if (pass.most_bytes == 0) {
    // Segments that readers hold do not count. Otherwise the directory would grow with each pass
    // until they are released.
    const std::uint64_t used =
        budget_.used_bytes() - std::min(budget_.used_bytes(), pass.held_bytes);
    pass.most_bytes = std::max(used, budget_.budget_bytes()) + budget_.segment_bytes() / 4 * 3;
  }
  MODCACHE_ASSIGN_OR_RETURN(auto candidates, survey_.candidates(pass));
  for (const SegmentUse& candidate : candidates) {
    if (requests_.is_stopping() || !attached_.is_attached()) return Status::ok();
    const std::uint64_t moved_before = pass.moved_bytes;
    if (pass.spares_the_rest) {
      const std::uint64_t growth = std::min(budget_.segment_bytes(), budget_.used_bytes());
      pass.enough_bytes = excess_bytes(pass) + growth / kGrowthShare;
    }
    pass.dead_bytes = candidate.size_bytes - std::min(candidate.size_bytes, candidate.live_bytes);
    const Status status = emptier_.empty(pass, candidate.id);
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

}  // namespace modcache::store
