// SPDX-License-Identifier: Apache-2.0
#include "store/counters/directory_counters.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/fork.h"
#include "base/process_wide.h"
#include "store/counters/counter_totals.h"

namespace modcache::store {
namespace {

// A slot that a thread has counted in. Generations are unique in a process, so one of another
// object, or of what is no longer in use, never passes for one.
struct RememberedSlot {
  std::uint64_t generation = 0;
  Digest128 who;
  CounterSlot* slot = nullptr;
};
constexpr std::size_t kRememberedSlots = 8;
thread_local std::array<RememberedSlot, kRememberedSlots> remembered_slots;

// Reading the clock at each hit would be felt, so threads look at the day now and then.
constexpr std::uint32_t kAdditionsPerLook = 16;
thread_local std::uint32_t additions_of_this_thread = 0;

// Files of ended processes are read by whoever asks, and gathered where they are this many.
constexpr std::size_t kFilesToGather = 8;

constexpr std::size_t kMostWaitingScopes = 256;

std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void add_to(CounterSlot& slot, std::span<const DirectoryCounters::Addition> additions) {
  for (const auto& addition : additions) {
    slot[addition.counter].fetch_add(addition.amount, std::memory_order_relaxed);
  }
}

// All of this process, for its forked children.
struct AllCounters : ProcessWide<AllCounters> {
  AllCounters();

  std::set<DirectoryCounters*> all MODCACHE_GUARDED_BY(mutex);
};

// A forked child has one thread, so nobody else uses them.
void drop_in_child() MODCACHE_LOCKS_UNCHECKED {
  for (DirectoryCounters* counters : AllCounters::instance().all) counters->drop_waiting_counts();
}

AllCounters::AllCounters() { run_in_forked_child(drop_in_child); }

}  // namespace

DirectoryCounters::DirectoryCounters(fs::FileSystem& file_system, std::string directory)
    : file_system_(file_system),
      directory_(std::move(directory)),
      generation_(next_generation()),
      day_(day_of(now_us())),
      looked_at_us_(now_us()),
      fork_registration_(hold_across_fork(mutex_)) {
  AllCounters& counters = AllCounters::instance();
  MutexLock lock(counters.mutex);
  counters.all.insert(this);
}

DirectoryCounters::~DirectoryCounters() {
  AllCounters& counters = AllCounters::instance();
  MutexLock lock(counters.mutex);
  counters.all.erase(this);
  stop_holding_across_fork(fork_registration_);
}

void DirectoryCounters::drop_waiting_counts() {
  MutexLock lock(mutex_);
  for (const auto& [scope, waiting] : waiting_) {
    for (auto& count : *waiting) count.store(0, std::memory_order_relaxed);
  }
}

bool DirectoryCounters::has_waiting_counts() {
  MutexLock lock(mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& waiting) {
    return std::any_of(waiting.second->begin(), waiting.second->end(), [](const auto& count) {
      return count.load(std::memory_order_relaxed) != 0;
    });
  });
}

void DirectoryCounters::add(const Digest128& who, std::string_view scope,
                            std::span<const Addition> additions) {
  if (++additions_of_this_thread % kAdditionsPerLook == 0) look_around();
  add_to(slot_of(who, scope), additions);
}

void DirectoryCounters::add(std::string_view scope, std::span<const Addition> additions) {
  look_around();
  add_to(slot_of(xxh3_128(scope), scope), additions);
}

void DirectoryCounters::look_around() {
  const std::int64_t now = now_us();
  const std::int32_t today = day_of(now);
  if (day_.exchange(today, std::memory_order_relaxed) != today) forget_slots();
  std::int64_t before = looked_at_us_.load(std::memory_order_relaxed);
  if (before <= now && now - before < kLookAgainAfterUs) return;
  if (looked_at_us_.compare_exchange_strong(before, now)) look_at_file();
}

// Somebody may have removed it: what is counted there is lost.
void DirectoryCounters::look_at_file() {
  MutexLock lock(mutex_);
  if (!is_attached_ || files_.back()->is_in_place()) return;
  use_new_file();
  forget_slots();
}

void DirectoryCounters::forget_slots() {
  generation_.store(next_generation(), std::memory_order_release);
}

CounterSlot& DirectoryCounters::slot_of(const Digest128& who, std::string_view scope) {
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  RememberedSlot& remembered = remembered_slots[who.low % kRememberedSlots];
  if (remembered.generation != generation || remembered.who != who) {
    MutexLock lock(mutex_);
    remembered = {generation, who, &find_slot(scope)};
  }
  return *remembered.slot;
}

CounterSlot& DirectoryCounters::find_slot(std::string_view scope) {
  if (is_attached_) {
    move_waiting_counts();
    if (CounterSlot* const slot = slot_in_file(scope)) return *slot;
  }
  const auto known = waiting_.find(scope);
  if (known != waiting_.end()) return *known->second;
  const bool is_full = waiting_.size() >= kMostWaitingScopes;
  auto& slot = waiting_[std::string(is_full ? kOtherScopes : scope)];
  if (slot == nullptr) slot = std::make_unique<CounterSlot>();
  return *slot;
}

// Null: there is no file that can be written.
CounterSlot* DirectoryCounters::slot_in_file(std::string_view scope) {
  if (files_.empty()) return nullptr;
  const std::int32_t today = day_.load(std::memory_order_relaxed);
  if (CounterSlot* const slot = slot_in_files_in_use(scope, today)) return slot;
  if (may_open_another() && open_file()) {
    if (CounterSlot* const slot = files_.back()->slot_of(scope, today)) return slot;
  }
  return other_scopes_;
}

// A scope that comes back has a slot in one of the files before the last one.
CounterSlot* DirectoryCounters::slot_in_files_in_use(std::string_view scope, std::int32_t day) {
  const std::size_t most_back = std::min(kMostFiles, files_.size() - first_in_use_);
  for (std::size_t i = files_.size() - most_back; i < files_.size(); ++i) {
    if (CounterSlot* const slot = files_[i]->slot_of(scope, day)) return slot;
  }
  return nullptr;
}

bool DirectoryCounters::attach() {
  MutexLock lock(mutex_);
  const bool is_in_place = !files_.empty() && files_.back()->is_in_place();
  if (is_attached_ && is_in_place) return true;
  if (!is_in_place) use_new_file();
  is_attached_ = is_attached_ || is_in_place;
  if (is_attached_) move_waiting_counts();
  if (is_attached_ && !is_in_place) {
    (void)gather_counters(Directory::at(file_system_, directory_), kFilesToGather,
                          /*patience_ms=*/0);
  }
  forget_slots();
  return is_attached_;
}

void DirectoryCounters::detach() {
  MutexLock lock(mutex_);
  is_attached_ = false;
  forget_slots();
}

// Those before are gone, or of a directory that is.
void DirectoryCounters::use_new_file() {
  is_attached_ = open_file();
  if (is_attached_) first_in_use_ = files_.size() - 1;
}

// On failure, as on a full disk, what is in use stays so.
bool DirectoryCounters::open_file() {
  auto file = CounterFile::create(Directory::at(file_system_, directory_));
  if (!file.is_ok()) {
    failed_us_ = now_us();
    return false;
  }
  files_.push_back(std::move(file).value());
  opened_us_ = now_us();
  // Taken now, since there will be no slot left when it is needed.
  other_scopes_ = files_.back()->slot_of(kOtherScopes, day_.load(std::memory_order_relaxed));
  return true;
}

// All of them stay mapped, so there must not be ever more. On a full disk each further scope would
// try in vain.
bool DirectoryCounters::may_open_another() const {
  const std::int64_t now = now_us();
  if (failed_us_ <= now && now - failed_us_ < kTryAgainAfterUs) return false;
  return files_.size() < kMostFiles || now - opened_us_ > kHourUs;
}

void DirectoryCounters::move_waiting_counts() {
  for (const auto& [scope, waiting] : waiting_) {
    for (std::size_t i = 0; i < kMostCounters; ++i) {
      if ((*waiting)[i].load(std::memory_order_relaxed) == 0) continue;
      const std::int64_t amount = (*waiting)[i].exchange(0, std::memory_order_relaxed);
      CounterSlot* const slot = slot_in_file(scope);
      (slot != nullptr ? *slot : *waiting)[i].fetch_add(amount, std::memory_order_relaxed);
    }
  }
}

}  // namespace modcache::store
