// SPDX-License-Identifier: Apache-2.0
#include "cache/store_handle.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "store/control/directory_mode.h"

namespace modcache::cache {
namespace {

constexpr std::int64_t kPatienceMs = 400;
// Another process may make the directory that a reader found missing.
constexpr auto kLookAgainAfter = std::chrono::milliseconds(500);

}  // namespace

StoreHandle::StoreHandle(const Settings& settings, fs::FileSystem& file_system)
    : settings_(settings),
      file_system_(file_system),
      fork_generation_(fork_generation()),
      fork_registration_(hold_across_fork(mutex_)),
      listeners_fork_registration_(hold_across_fork(listeners_mutex_)) {}

StoreHandle::~StoreHandle() {
  stop_holding_across_fork(fork_registration_);
  stop_holding_across_fork(listeners_fork_registration_);
  MutexLock lock(mutex_);
  abandon_after_fork();
  store_ = nullptr;  // before the listeners, as its threads count
}

namespace {

struct Use {
  const void* user;
  std::shared_ptr<StoreHandle> handle;
};
struct Uses : ProcessWide<Uses> {
  std::vector<Use> all MODCACHE_GUARDED_BY(mutex);
};

Status check_shared(const Settings& settings, const Settings& other) {
  const char* differing = settings.disk_bytes != other.disk_bytes   ? "disk"
                          : settings.durability != other.durability ? "durability"
                          : settings.io != other.io                 ? "io"
                                                                    : nullptr;
  if (differing == nullptr) return Status::ok();
  const std::string option = differing;
  return Status::invalid_argument(
      "another Cache of this process uses the directory '" + settings.dir + "' with " + option +
      "='" + to_options(other).at(option) + "', so this one cannot have " + option + "='" +
      to_options(settings).at(option) + "'; give both the same value, or use another dir");
}

}  // namespace

Result<std::shared_ptr<StoreHandle>> StoreHandle::acquire(const void* user,
                                                          const Settings& settings,
                                                          fs::FileSystem& file_system) {
  if (user == nullptr) return std::make_shared<StoreHandle>(settings, file_system);
  MutexLock lock(Uses::instance().mutex);
  std::vector<Use>& all = Uses::instance().all;
  std::shared_ptr<StoreHandle> handle;
  for (const Use& use : all) {
    const Settings& other = use.handle->settings_;
    if (use.user == user || other.dir != settings.dir || other.disk_bytes == 0) continue;
    if (settings.disk_bytes == 0) continue;
    MODCACHE_RETURN_IF_ERROR(check_shared(settings, other));
    handle = use.handle;
  }
  const auto own =
      std::find_if(all.begin(), all.end(), [&](const Use& use) { return use.user == user; });
  const bool stays = handle == nullptr && own != all.end() && own->handle->has_store_of(settings);
  if (stays) return own->handle;
  if (handle == nullptr) handle = std::make_shared<StoreHandle>(settings, file_system);
  if (own == all.end()) {
    all.push_back({user, handle});
  } else {
    own->handle = handle;
  }
  return handle;
}

void StoreHandle::release(const void* user) {
  std::shared_ptr<StoreHandle> released;  // destroyed when the lock is no longer held
  MutexLock lock(Uses::instance().mutex);
  std::vector<Use>& all = Uses::instance().all;
  const auto own =
      std::find_if(all.begin(), all.end(), [&](const Use& use) { return use.user == user; });
  if (own == all.end()) return;
  released = std::move(own->handle);
  all.erase(own);
}

bool StoreHandle::has_store_of(const Settings& settings) const {
  return settings_.dir == settings.dir && settings_.disk_bytes == settings.disk_bytes &&
         settings_.max_age_s == settings.max_age_s && settings_.strict == settings.strict &&
         settings_.durability == settings.durability && settings_.io == settings.io &&
         settings_.policy == settings.policy;
}

void StoreHandle::add_listener(Stats& stats) {
  MutexLock lock(listeners_mutex_);
  listeners_.push_back(&stats);
}

void StoreHandle::remove_listener(Stats& stats) {
  MutexLock lock(listeners_mutex_);
  listeners_.erase(std::find(listeners_.begin(), listeners_.end(), &stats));
}

void StoreHandle::count(Counter counter, std::int64_t amount) {
  MutexLock lock(listeners_mutex_);
  if (!listeners_.empty()) listeners_.front()->add(counter, amount);
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

StorePtr StoreHandle::open_if_there() {
  MutexLock lock(mutex_);
  abandon_after_fork();
  if (Clock::now() < alone_until_ || !file_system_.info(settings_.dir).is_ok()) return nullptr;
  return attached(Access::kWrite);
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
  if (store_ != nullptr && !store_->is_attached()) store_ = nullptr;
  if (store_ == nullptr) store_ = open(access);
  return store_;
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
  count(Counter::kErrors);
  log(LogLevel::kWarning, "open:" + settings_.dir,
      "the cache directory '" + settings_.dir + "' cannot be used: " + opened.status().message() +
          "; models run without it, it is tried again in 30 s");
  return nullptr;
}

store::StoreOptions StoreHandle::options() {
  store::StoreOptions options;
  options.directory = settings_.dir;
  options.disk_budget_bytes = settings_.disk_bytes;
  options.make_policy = [kind = settings_.policy](void* shared_state) {
    return policy::make_policy(kind, shared_state);
  };
  options.durability = settings_.durability;
  options.read_via = settings_.io;
  options.patience_ms = kPatienceMs;
  options.max_age_us = max_age_us(settings_);
  options.on_evicted = [this](std::int64_t entries) { count(Counter::kEvicted, entries); };
  options.on_not_kept = [this](std::int64_t entries) { count(Counter::kNotKept, entries); };
  options.is_strict = settings_.strict;
  options.on_foreign_file = [this, dir = settings_.dir](const Status& foreign) {
    count(Counter::kErrors);
    log_once(LogLevel::kWarning, foreign.message(),
             "in the cache directory '" + dir + "': " + foreign.message() +
                 "; models run on, modcache doctor '" + dir + "' says more");
  };
  options.on_write_error = [this, dir = settings_.dir](const Status& status, std::int64_t entries) {
    count(Counter::kErrors, entries);
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
