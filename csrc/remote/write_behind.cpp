// SPDX-License-Identifier: Apache-2.0
#include "remote/write_behind.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/without_throwing.h"

namespace modcache::remote {
namespace {

// Writes of one call, and of calls that follow at once, go to the server together.
constexpr auto kGather = std::chrono::milliseconds(2);
constexpr auto kIdle = std::chrono::seconds(1);

// Several writes of one name: only the last counts. What came before it must not be written after
// it, and what that would have replaced is replaced by the last.
template <typename Queued>
std::vector<bool> find_last(std::vector<Queued>& writes) {
  std::vector<bool> are_last(writes.size(), false);
  std::unordered_map<std::string_view, std::size_t> last;
  for (std::size_t i = writes.size(); i-- > 0;) {
    const auto [found, is_new] = last.emplace(writes[i].name, i);
    are_last[i] = is_new;
    Queued& newest = writes[found->second];
    const bool is_removal = writes[i].encode == nullptr;
    newest.replaces = newest.replaces || writes[i].replaces || is_removal;
  }
  return are_last;
}

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
    // A thread that does not exist here waits for its condition.
    queue_.release();  // NOLINT(bugprone-unused-return-value)
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
      are_taken[i] = push_one(std::move(writes[i]), now);
      if (!are_taken[i]) ++dropped;
    }
    while (now.owed.size() > kMostOwed) now.owed.erase(now.owed.begin());
    count_pending(now);
    start_thread(now);
    now.changed.notify_all();
  }
  if (dropped > 0) listener_.on_dropped(dropped, Status::ok());
  return are_taken;
}

bool WriteBehind::push_one(Write write, Queue& queue) {
  const bool is_removal = write.encode == nullptr;
  const bool has_room = queue.size_bytes + write.size_bytes <= options_.limit_bytes;
  const std::uint64_t number = ++queue.last_number;
  if (!is_removal && (!has_room || !may_write())) {
    // An older value that still waits is replaced as well as one on the server.
    if (write.replaces || queue.names.count(write.name) != 0) queue.owed[write.name] = number;
    return false;
  }
  queue.size_bytes += write.size_bytes;
  ++queue.names[write.name];
  ++queue.pushed;
  queue.writes.push_back({std::move(write), number});
  return true;
}

void WriteBehind::start_thread(Queue& queue) {
  if (queue.thread.joinable() || (queue.writes.empty() && queue.owed.empty())) return;
  const Status started = without_throwing([&] {
    queue.thread = std::thread([this, &queue] { work_until_stopped(queue); });
    return Status::ok();
  });
  (void)started;  // without a thread the queue fills, and what does not fit is counted
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
  while (now.done < wanted && !now.is_stopping && now.changed.wait_until(mutex_, deadline)) {
  }
  --now.waiters;
  if (now.done >= wanted) return Status::ok();
  return Status::busy(std::to_string(wanted - now.done) + " writes still wait");
}

std::vector<WriteBehind::Queued> WriteBehind::take(Queue& queue) {
  std::vector<Queued> taken;
  std::uint64_t size_bytes = 0;
  while (!queue.writes.empty() && taken.size() < kMostInBatch) {
    const std::uint64_t next_bytes = queue.writes.front().size_bytes;
    if (size_bytes > 0 && size_bytes + next_bytes > kBatchBytes) break;
    size_bytes += next_bytes;
    taken.push_back(std::move(queue.writes.front()));
    queue.writes.pop_front();
  }
  return taken;
}

void WriteBehind::work_until_stopped(Queue& queue) {
  while (true) {
    std::vector<Queued> taken;
    {
      MutexLock lock(mutex_);
      const auto idle_until = Clock::now() + kIdle;
      while (!queue.is_stopping && queue.writes.empty() && queue.waiters == 0 &&
             queue.changed.wait_until(mutex_, idle_until)) {
      }
      if (queue.is_stopping) return;
      const auto gather_until = Clock::now() + kGather;
      while (!queue.is_stopping && queue.waiters == 0 && queue.writes.size() < kMostInBatch &&
             queue.changed.wait_until(mutex_, gather_until)) {
      }
      taken = take(queue);
    }
    // No memory: what was taken is lost, and the thread goes on.
    (void)without_throwing([&] {
      if (!taken.empty()) write(encoded(taken), queue);
      return Status::ok();
    });
    if (!taken.empty()) finish(taken, queue);
    (void)without_throwing([&] {
      pay_debts(queue);
      return Status::ok();
    });
  }
}

void WriteBehind::add_to(Batch& batch, const Queued& write) {
  if (write.encode == nullptr) {
    batch.removals.push_back({write.name, write.number, true});
    return;
  }
  auto bytes = without_throwing([&] { return write.encode(); });
  if (bytes.is_ok()) {
    batch.values.push_back({write.name, std::move(bytes).value()});
    batch.claims.push_back({write.name, write.number, write.replaces});
    return;
  }
  if (write.replaces) batch.removals.push_back({write.name, write.number, true});
  ++batch.dropped;
  batch.failure = bytes.status();
}

WriteBehind::Batch WriteBehind::encoded(std::vector<Queued>& taken) {
  Batch batch;
  const std::vector<bool> are_last = find_last(taken);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (are_last[i]) add_to(batch, taken[i]);
  }
  return batch;
}

Status WriteBehind::run_to_end(const Queue& queue, Client::Work work) {
  return client_.run_to_end(std::move(work), options_.timeout,
                            [&queue] { return queue.is_stopping.load(); });
}

void WriteBehind::write(Batch batch, Queue& queue) {
  if (!batch.removals.empty()) {
    const auto names = std::make_shared<std::vector<std::string>>();
    for (const Claim& removal : batch.removals) names->push_back(removal.name);
    const Status status =
        run_to_end(queue, [names](Backend& backend) { return backend.remove_all(*names); });
    if (status.is_ok()) {
      forgive(batch.removals, queue);
    } else {
      owe(batch.removals, queue);
    }
  }
  if (batch.dropped > 0) {
    listener_.on_dropped(batch.dropped, batch.failure);
    pause_after(batch.failure);
  }
  if (!batch.values.empty()) put(batch, queue);
}

void WriteBehind::put(Batch& batch, Queue& queue) {
  struct Outcome {
    std::vector<NamedValue> values;
    std::vector<bool> are_stored;
  };
  const auto outcome = std::make_shared<Outcome>();
  outcome->values = std::move(batch.values);
  const auto is_over = std::make_shared<std::atomic<bool>>(false);
  const Status status =
      run_to_end(queue, [outcome, is_over, ttl_ms = options_.ttl_ms](Backend& backend) {
        Status put = backend.put_all(outcome->values, ttl_ms, outcome->are_stored);
        is_over->store(true);
        return put;
      });
  // Work that goes on while the queue ends may still write to its outcome.
  const bool is_known = is_over->load();
  std::vector<Claim> owed;
  std::vector<Claim> stored;
  for (std::size_t i = 0; i < batch.claims.size(); ++i) {
    const bool is_stored = is_known && i < outcome->are_stored.size() && outcome->are_stored[i];
    if (is_stored) stored.push_back(batch.claims[i]);
    if (!is_stored && batch.claims[i].replaces) owed.push_back(batch.claims[i]);
  }
  owe(owed, queue);
  forgive(stored, queue);
  const std::size_t written = stored.size();
  if (written > 0) listener_.on_written(written);
  if (written < batch.claims.size()) listener_.on_dropped(batch.claims.size() - written, status);
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

void WriteBehind::finish(const std::vector<Queued>& writes, Queue& queue) {
  MutexLock lock(mutex_);
  for (const Queued& write : writes) {
    queue.size_bytes -= write.size_bytes;
    const auto named = queue.names.find(write.name);
    if (--named->second == 0) queue.names.erase(named);
  }
  queue.done += writes.size();
  count_pending(queue);
  queue.changed.notify_all();
}

void WriteBehind::owe(const std::vector<Claim>& claims, Queue& queue) {
  if (claims.empty()) return;
  MutexLock lock(mutex_);
  for (const Claim& claim : claims) {
    std::uint64_t& number = queue.owed[claim.name];
    number = std::max(number, claim.number);
  }
  while (queue.owed.size() > kMostOwed) queue.owed.erase(queue.owed.begin());
  count_pending(queue);
}

// The server's values of these names, or that it has none, are at least as new as the claims.
void WriteBehind::forgive(const std::vector<Claim>& claims, Queue& queue) {
  MutexLock lock(mutex_);
  if (queue.owed.empty()) return;
  for (const Claim& claim : claims) {
    const auto found = queue.owed.find(claim.name);
    if (found != queue.owed.end() && found->second <= claim.number) queue.owed.erase(found);
  }
  count_pending(queue);
}

void WriteBehind::pay_debts(Queue& queue) {
  std::vector<Claim> debts;
  const auto names = std::make_shared<std::vector<std::string>>();
  {
    MutexLock lock(mutex_);
    if (queue.owed.empty() || queue.is_stopping || !may_write()) return;
    // A part of the server that is down must not keep the names of others waiting.
    auto next = queue.owed.upper_bound(queue.asked_last);
    for (std::size_t i = 0; i < queue.owed.size() && debts.size() < kMostInBatch; ++i, ++next) {
      if (next == queue.owed.end()) next = queue.owed.begin();
      const auto& [name, number] = *next;
      // A newer value of this name is on its way, after which a removal would take it away.
      if (queue.names.count(name) != 0) continue;
      names->push_back(name);
      debts.push_back({name, number, true});
    }
    if (!debts.empty()) queue.asked_last = debts.back().name;
  }
  if (debts.empty()) return;
  const Status status =
      run_to_end(queue, [names](Backend& backend) { return backend.remove_all(*names); });
  if (status.is_ok()) forgive(debts, queue);
}

}  // namespace modcache::remote
