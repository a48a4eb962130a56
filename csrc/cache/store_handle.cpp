// SPDX-License-Identifier: Apache-2.0
#include "cache/store_handle.h"

#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "store/control/directory_mode.h"

namespace modcache::cache {
namespace {

constexpr std::int64_t kPatienceMs = 400;
constexpr std::int64_t kMostAgeSeconds = 100LL * 366 * 24 * 3600;
// Another process may make the directory that a reader found missing.
constexpr auto kLookAgainAfter = std::chrono::milliseconds(500);

}  // namespace

StoreHandle::StoreHandle(const Settings& settings, Stats& stats, fs::FileSystem& file_system,
                         store::DirectoryCounters* counters)
    : settings_(settings),
      stats_(stats),
      file_system_(file_system),
      counters_(counters),
      fork_generation_(fork_generation()),
      fork_registration_(hold_across_fork(mutex_)) {}

StoreHandle::~StoreHandle() {
  stop_holding_across_fork(fork_registration_);
  MutexLock lock(mutex_);
  abandon_after_fork();
}

// The parent's connection and locks must not be closed from here, so its Store is leaked on
// purpose: an owner that is never destroyed keeps it.
void StoreHandle::abandon_after_fork() {
  if (fork_generation_ == fork_generation()) return;
  fork_generation_ = fork_generation();
  if (store_ != nullptr) new StorePtr(std::move(store_));  // NOLINT: leaked, see above
  store_ = nullptr;
}

StorePtr StoreHandle::get_open() {
  MutexLock lock(mutex_);
  abandon_after_fork();
  return store_;
}

void StoreHandle::open_if_there() {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (Clock::now() < alone_until_ || !file_system_.info(settings_.dir).is_ok()) return;
  (void)attached(Access::kWrite);
}

StorePtr StoreHandle::get(Access access) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (Clock::now() < alone_until_) return nullptr;
  return attached(access);
}

std::uint64_t StoreHandle::removals(Access access) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (attached(access) != nullptr) last_removals_ = store_->removals();
  return last_removals_;
}

const StorePtr& StoreHandle::attached(Access access) {
  if (store_ != nullptr && !store_->is_attached()) {
    store_ = nullptr;
    if (counters_ != nullptr) counters_->detach();
  }
  if (store_ == nullptr) {
    store_ = open(access);
    are_counters_attached_ = false;
    counters_again_at_ = {};
  }
  let_counters_attach(access);
  return store_;
}

void StoreHandle::let_counters_attach(Access access) {
  if (are_counters_attached_ || counters_ == nullptr || access != Access::kWrite) return;
  if (store_ == nullptr || store_->is_read_only()) return;
  const auto now = Clock::now();
  if (now < counters_again_at_) return;
  are_counters_attached_ = counters_->attach();
  counters_again_at_ = now + kBackoff;
}

StorePtr StoreHandle::open(Access access) {
  if (settings_.disk_bytes == 0) return nullptr;
  const auto now = Clock::now();
  if (now < alone_until_ || (access == Access::kRead && now < missing_until_)) return nullptr;
  // A directory that is there is opened alike for all calls: SQLite cannot have one connection of
  // a process that may write and another that may not.
  if (access == Access::kRead && file_system_.info(settings_.dir).is_not_found()) {
    missing_until_ = now + kLookAgainAfter;
    return nullptr;
  }
  // A call asked for the mode of the directory that was configured a moment before.
  const auto mode = store::directory_mode(file_system_, settings_.dir);
  if (mode.is_ok() && mode.value() == store::DirectoryMode::kOff) {
    why_alone_ = "its mode is off";
    return nullptr;
  }
  auto opened = store::Store::open(file_system_, options());
  if (opened.is_ok()) return StorePtr(std::move(opened).value());
  alone_until_ = Clock::now() + kBackoff;
  why_alone_ = opened.status().message();
  stats_.add(Counter::kErrors);
  log(LogLevel::kWarning, "open:" + settings_.dir,
      "the cache directory '" + settings_.dir + "' cannot be used: " + opened.status().message() +
          "; models run without it, it is tried again in 30 s");
  return nullptr;
}

store::StoreOptions StoreHandle::options() const {
  store::StoreOptions options;
  options.directory = settings_.dir;
  options.disk_budget_bytes = settings_.disk_bytes;
  options.make_policy = [kind = settings_.policy](void* shared_state) {
    return policy::make_policy(kind, shared_state);
  };
  options.durability = settings_.durability;
  options.read_via = settings_.io;
  options.patience_ms = kPatienceMs;
  options.max_age_us = settings_.max_age_s > kMostAgeSeconds ? 0 : settings_.max_age_s * 1'000'000;
  options.on_evicted = [&stats = stats_](std::int64_t entries) {
    stats.add(Counter::kEvicted, entries);
  };
  options.on_not_kept = [&stats = stats_](std::int64_t entries) {
    stats.add(Counter::kNotKept, entries);
  };
  options.is_strict = settings_.strict;
  options.on_foreign_file = [&stats = stats_, dir = settings_.dir](const Status& foreign) {
    stats.add(Counter::kErrors);
    log_once(LogLevel::kWarning, foreign.message(),
             "in the cache directory '" + dir + "': " + foreign.message() +
                 "; models run on, modcache doctor '" + dir + "' says more");
  };
  // The store may outlive this handle for a moment, but not the counters.
  options.on_write_error = [&stats = stats_, dir = settings_.dir](const Status& status,
                                                                  std::int64_t entries) {
    stats.add(Counter::kErrors, entries);
    log(LogLevel::kWarning, "write:" + dir,
        "writing to '" + dir + "' failed: " + status.message() +
            "; the models run on, these results are not kept");
  };
  return options;
}

void StoreHandle::leave_alone(const Status& failure) {
  MutexLock lock(mutex_);
  alone_until_ = Clock::now() + kBackoff;
  why_alone_ = failure.message();
}

// Whoever clears wants it more than others want to be spared the delay; but not again and again.
StorePtr StoreHandle::get_to_clear(std::string& why_not) {
  MutexLock lock(mutex_);
  abandon_after_fork();
  const auto now = Clock::now();
  if (now >= alone_until_ || now >= no_clear_until_) {
    alone_until_ = {};
    (void)attached(Access::kWrite);
    no_clear_until_ = alone_until_;
    if (store_ != nullptr) return store_;
  }
  why_not = why_alone_;
  return nullptr;
}

void StoreHandle::leave_alone_to_clear(const Status& failure) {
  leave_alone(failure);
  MutexLock lock(mutex_);
  no_clear_until_ = alone_until_;
}

void StoreHandle::close() {
  StorePtr closing;  // let go of when the lock is no longer held
  MutexLock lock(mutex_);
  abandon_after_fork();
  closing = std::move(store_);
  store_ = nullptr;
}

}  // namespace modcache::cache
