// SPDX-License-Identifier: Apache-2.0
#include "remote/write_behind.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/without_throwing.h"

namespace modcache::remote {
namespace {

// Writes of one call, and of calls that follow at once, go to the server together.
constexpr auto kGather = std::chrono::milliseconds(2);
// Writes that cannot decide yet are asked again after this.
constexpr auto kAskAgainAfter = std::chrono::milliseconds(50);
constexpr auto kIdle = std::chrono::seconds(1);

}  // namespace

WriteBehind::WriteBehind(Client& client, const Options& options, Listener& listener)
    : client_(client),
      options_(options),
      listener_(listener),
      fork_registration_(hold_across_fork(mutex_)) {}

WriteBehind::~WriteBehind() {
  stop();
  stop_holding_across_fork(fork_registration_);
}

void WriteBehind::stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    Queue& now = queue();
    now.is_stopping = true;
    now.changed.notify_all();
    thread = std::move(now.thread);
  }
  if (thread.joinable()) thread.join();
}

WriteBehind::Queue& WriteBehind::queue() {
  if (queue_->fork_generation != fork_generation()) {
    (void)queue_.release();  // a thread that does not exist here waits for its condition
    queue_ = std::make_unique<Queue>();
    count_pending(*queue_);
  }
  return *queue_;
}

void WriteBehind::count_pending(const Queue& queue) {
  pending_.store(queue.names.size() + queue.owed.size(), std::memory_order_relaxed);
}

bool WriteBehind::may_write() { return client_.is_available() && Clock::now() >= paused_until_; }

std::vector<bool> WriteBehind::push(std::vector<Write> writes) {
  std::vector<bool> are_taken(writes.size(), false);
  std::size_t dropped = 0;
  {
    MutexLock lock(mutex_);
    Queue& now = queue();
    if (now.is_stopping) return are_taken;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      Write& write = writes[i];
      const bool is_removal = write.encode == nullptr;
      const bool has_room = now.size_bytes + write.size_bytes <= options_.limit_bytes;
      if (!is_removal && (!has_room || !may_write())) {
        if (write.replaces) now.owed.insert(write.name);
        ++dropped;
        continue;
      }
      are_taken[i] = true;
      now.size_bytes += write.size_bytes;
      ++now.names[write.name];
      ++now.pushed;
      now.writes.push_back(std::move(write));
    }
    while (now.owed.size() > kMostOwed) now.owed.erase(now.owed.begin());
    count_pending(now);
    if (!now.thread.joinable() && !(now.writes.empty() && now.owed.empty())) {
      const Status started = without_throwing([&] {
        now.thread = std::thread([this, &now] { work_until_stopped(now); });
        return Status::ok();
      });
      (void)started;  // without a thread the queue fills, and what does not fit is counted
    }
    now.changed.notify_all();
  }
  if (dropped > 0) listener_.on_dropped(dropped, Status::ok());
  return are_taken;
}

bool WriteBehind::is_pending(const std::string& name) {
  MutexLock lock(mutex_);
  const Queue& now = queue();
  return now.names.count(name) != 0 || now.owed.count(name) != 0;
}

Status WriteBehind::flush(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  Queue& now = queue();
  const std::uint64_t wanted = now.pushed;
  ++now.waiters;
  now.changed.notify_all();
  while (now.done < wanted && now.changed.wait_until(mutex_, deadline)) {
  }
  --now.waiters;
  if (now.done >= wanted) return Status::ok();
  return Status::busy(std::to_string(wanted - now.done) + " writes still wait");
}

std::vector<WriteBehind::Write> WriteBehind::take(Queue& queue) {
  std::vector<Write> taken;
  std::uint64_t size_bytes = 0;
  while (!queue.writes.empty() && taken.size() < kMostInBatch) {
    size_bytes += queue.writes.front().size_bytes;
    if (!taken.empty() && size_bytes > kBatchBytes) break;
    taken.push_back(std::move(queue.writes.front()));
    queue.writes.pop_front();
  }
  return taken;
}

void WriteBehind::work_until_stopped(Queue& queue) {
  std::vector<Write> held;
  while (true) {
    std::vector<Write> taken;
    bool must_decide = false;
    {
      MutexLock lock(mutex_);
      const auto idle_until =
          Clock::now() + (held.empty() ? Clock::duration(kIdle) : kAskAgainAfter);
      while (!queue.is_stopping && queue.writes.empty() && queue.waiters == 0 &&
             queue.changed.wait_until(mutex_, idle_until)) {
      }
      if (queue.is_stopping) return;
      const auto gather_until = Clock::now() + kGather;
      while (!queue.is_stopping && queue.waiters == 0 && queue.writes.size() < kMostInBatch &&
             queue.changed.wait_until(mutex_, gather_until)) {
      }
      taken = take(queue);
      must_decide = queue.waiters != 0;
    }
    take_back(held, taken, queue);
    if (!taken.empty()) {
      write(encoded(taken, must_decide, held), queue);
      finish(taken, queue);
    }
    pay_debts(queue);
  }
}

// Adds to `taken` what was held back, but for what a newer write has taken the place of.
void WriteBehind::take_back(std::vector<Write>& held, std::vector<Write>& taken, Queue& queue) {
  std::vector<Write> outdated;
  {
    MutexLock lock(mutex_);
    for (Write& write : held) {
      const bool is_latest = queue.names[write.name] == 1;
      (is_latest ? taken : outdated).push_back(std::move(write));
    }
  }
  held.clear();
  finish(outdated, queue);
}

WriteBehind::Batch WriteBehind::encoded(std::vector<Write>& taken, bool must_decide,
                                        std::vector<Write>& held) {
  Batch batch;
  std::vector<Write> decided;
  for (Write& write : taken) {
    if (write.encode == nullptr) {
      // Removals go first, so what was written before this one must not follow it.
      for (std::size_t i = batch.values.size(); i-- > 0;) {
        if (batch.values[i].name != write.name) continue;
        batch.values.erase(batch.values.begin() + static_cast<std::ptrdiff_t>(i));
        batch.replace.erase(batch.replace.begin() + static_cast<std::ptrdiff_t>(i));
      }
      batch.removals.push_back(write.name);
    } else {
      auto bytes = without_throwing([&] { return write.encode(must_decide); });
      if (bytes.is_ok()) {
        batch.values.push_back({write.name, std::move(bytes).value()});
        batch.replace.push_back(write.replaces);
      } else if (bytes.status().code() == StatusCode::kBusy && !must_decide) {
        held.push_back(std::move(write));
        continue;
      } else if (write.replaces) {
        batch.removals.push_back(write.name);
      }
    }
    decided.push_back(std::move(write));
  }
  taken = std::move(decided);
  return batch;
}

void WriteBehind::write(Batch batch, Queue& queue) {
  if (!batch.removals.empty()) {
    const auto names = std::make_shared<const std::vector<std::string>>(batch.removals);
    const Status status = client_.run(
        [names](Backend& backend) { return backend.remove_all(*names); }, options_.timeout);
    if (!status.is_ok()) owe(batch.removals, queue);
  }
  if (batch.values.empty()) return;
  struct Outcome {
    std::vector<NamedValue> values;
    std::vector<bool> are_stored;
  };
  const auto outcome = std::make_shared<Outcome>();
  outcome->values = std::move(batch.values);
  std::vector<std::string> names;
  for (const NamedValue& value : outcome->values) names.push_back(value.name);
  const Status status = client_.run(
      [outcome, ttl_ms = options_.ttl_ms](Backend& backend) {
        return backend.put_all(outcome->values, ttl_ms, outcome->are_stored);
      },
      options_.timeout);
  // Work that is not done in time may still write to its outcome.
  const bool is_known = status.code() != StatusCode::kBusy;
  std::vector<std::string> owed;
  std::vector<std::string> stored;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool is_stored = is_known && i < outcome->are_stored.size() && outcome->are_stored[i];
    if (is_stored) stored.push_back(names[i]);
    if (!is_stored && batch.replace[i]) owed.push_back(names[i]);
  }
  owe(owed, queue);
  forgive(stored, queue);
  const std::size_t written = stored.size();
  if (written > 0) listener_.on_written(written);
  if (written < names.size()) listener_.on_dropped(names.size() - written, status);
  pause_after(status);
}

// The pauses of a server that is full, or closed to writers; one that is down has a breaker.
void WriteBehind::pause_after(const Status& failure) {
  MutexLock lock(mutex_);
  if (failure.is_ok()) {
    pause_ = kFirstPause;
    return;
  }
  if (failure.code() != StatusCode::kNoSpace && failure.code() != StatusCode::kForeign) return;
  paused_until_ = Clock::now() + pause_;
  pause_ = std::min(pause_ * 2, kLongestPause);
}

void WriteBehind::finish(const std::vector<Write>& writes, Queue& queue) {
  MutexLock lock(mutex_);
  for (const Write& write : writes) {
    queue.size_bytes -= write.size_bytes;
    const auto named = queue.names.find(write.name);
    if (--named->second == 0) queue.names.erase(named);
  }
  queue.done += writes.size();
  count_pending(queue);
  queue.changed.notify_all();
}

void WriteBehind::owe(const std::vector<std::string>& names, Queue& queue) {
  if (names.empty()) return;
  MutexLock lock(mutex_);
  queue.owed.insert(names.begin(), names.end());
  while (queue.owed.size() > kMostOwed) queue.owed.erase(queue.owed.begin());
  count_pending(queue);
}

// The server has the right values under these names now.
void WriteBehind::forgive(const std::vector<std::string>& names, Queue& queue) {
  MutexLock lock(mutex_);
  if (queue.owed.empty()) return;
  for (const std::string& name : names) queue.owed.erase(name);
  count_pending(queue);
}

void WriteBehind::pay_debts(Queue& queue) {
  const auto names = std::make_shared<std::vector<std::string>>();
  {
    MutexLock lock(mutex_);
    if (queue.owed.empty() || queue.is_stopping || !client_.is_available()) return;
    for (const std::string& name : queue.owed) {
      if (names->size() == kMostInBatch) break;
      // A newer value of this name is on its way, after which a removal would take it away.
      if (queue.names.count(name) == 0) names->push_back(name);
    }
  }
  if (names->empty()) return;
  const Status status = client_.run(
      [names](Backend& backend) { return backend.remove_all(*names); }, options_.timeout);
  if (status.is_ok()) forgive(*names, queue);
}

}  // namespace modcache::remote
