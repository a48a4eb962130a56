// SPDX-License-Identifier: Apache-2.0
//
// WriteBehind: what is to be written to a server, in a bounded queue that one background thread
// empties in batches. Nobody waits for the server to write.
//
// What does not fit into the queue, or meets a server that is left alone, full or closed to
// writers, is dropped and counted: a cache loses nothing by that. A value that takes the place of
// another is more than that, since the older one must not be found again: its name stays `owed`, is
// removed from the server as soon as that can be done, and is_pending() until then.
//
// Thread-safe. A forked child starts with an empty queue and makes its own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/result.h"
#include "remote/backend.h"
#include "remote/client.h"

namespace modcache::remote {

class WriteBehind {
 public:
  static constexpr std::size_t kMostInBatch = 512;
  static constexpr std::uint64_t kBatchBytes = 8 << 20;
  // Names of replaced values that could not be removed so far; beyond that some are forgotten.
  static constexpr std::size_t kMostOwed = 100'000;
  static constexpr std::chrono::milliseconds kFirstPause{1'000};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  struct Write {
    std::string name;
    std::uint64_t size_bytes = 0;  // that it keeps in memory meanwhile
    bool replaces = false;         // the caller knows that another value has this name
    // Makes the bytes, on the writer's thread. On an error the write is dropped. Null: the name is
    // removed.
    std::function<Result<std::string>()> encode;
  };

  // Told what became of writes, on the writer's thread or that of a push(). It outlives this
  // object. Nobody hears of a write that a newer one of the same name took the place of.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_written(std::size_t writes) = 0;
    // Ok: there was no room, or it was not stored without a failure of the whole server.
    virtual void on_dropped(std::size_t writes, const Status& failure) = 0;
  };

  // Writes wait for at most `timeout` each; `ttl_ms`: see Backend::put_all().
  struct Options {
    std::uint64_t limit_bytes = 0;
    std::int64_t ttl_ms = 0;
    std::chrono::milliseconds timeout{0};
  };

  // `client` and `listener` must outlive it.
  WriteBehind(Client& client, const Options& options, Listener& listener);
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Drops what waits, and ends the thread. See flush(). Nothing is taken, and the listener is not
  // told of anything, afterwards.
  void stop();

  // Queues what there is room for. Returns whether each was taken. Does not wait.
  std::vector<bool> push(std::vector<Write> writes);

  // Whether the server may have another value under this name than the last one that was pushed, so
  // that it must not be asked for it.
  bool is_pending(const std::string& name);
  // The same for many names; empty where none is, which takes no lock.
  bool has_pending() const { return pending_.load(std::memory_order_relaxed) != 0; }

  // Waits until all that was pushed before is written, dropped or failed, at most until `deadline`.
  // kBusy: some of it still waits, or was dropped by stop().
  Status flush(Client::Clock::time_point deadline);

 private:
  using Clock = Client::Clock;
  struct Queued : Write {
    std::uint64_t number = 0;  // later writes have larger ones
  };
  // A name on the server, as the write of this number left it, or was to leave it.
  struct Claim {
    std::string name;
    std::uint64_t number = 0;
    bool replaces = false;
  };
  struct Queue {
    std::uint64_t fork_generation = modcache::fork_generation();
    CondVar changed;
    std::deque<Queued> writes;
    std::unordered_map<std::string, std::size_t> names;  // of what waits or is written: how often
    std::map<std::string, std::uint64_t> owed;  // by name: the number of the write that it is for
    std::string asked_last;                     // of them
    std::uint64_t size_bytes = 0;
    std::uint64_t last_number = 0;
    std::uint64_t pushed = 0;  // ever
    std::uint64_t done = 0;    // ever
    int waiters = 0;
    std::atomic<bool> is_stopping{false};
    std::thread thread;
  };
  struct Batch {
    std::vector<NamedValue> values;
    std::vector<Claim> claims;  // one for each value
    std::vector<Claim> removals;
    std::size_t dropped = 0;
    Status failure;  // for which they were dropped
  };

  Queue& queue() MODCACHE_REQUIRES(mutex_);
  void count_pending(const Queue& queue) MODCACHE_REQUIRES(mutex_);
  bool may_write() MODCACHE_REQUIRES(mutex_);
  bool push_one(Write write, Queue& queue) MODCACHE_REQUIRES(mutex_);
  void start_thread(Queue& queue) MODCACHE_REQUIRES(mutex_);
  void work_until_stopped(Queue& queue);
  void add_to(Batch& batch, const Queued& write);
  std::vector<Queued> take(Queue& queue) MODCACHE_REQUIRES(mutex_);
  Batch encoded(std::vector<Queued>& taken);
  void write(Batch batch, Queue& queue);
  void put(Batch& batch, Queue& queue);
  void finish(const std::vector<Queued>& writes, Queue& queue);
  void owe(const std::vector<Claim>& claims, Queue& queue);
  void forgive(const std::vector<Claim>& claims, Queue& queue);
  void pay_debts(Queue& queue);
  void pause_after(const Status& failure);
  // On the server, before anything else is written there.
  Status run_to_end(const Queue& queue, Client::Work work);

  Client& client_;
  const Options options_;
  Listener& listener_;
  std::atomic<std::size_t> pending_{0};
  Mutex mutex_;
  std::unique_ptr<Queue> queue_ MODCACHE_GUARDED_BY(mutex_) = std::make_unique<Queue>();
  Clock::time_point paused_until_ MODCACHE_GUARDED_BY(mutex_){};
  std::chrono::milliseconds pause_ MODCACHE_GUARDED_BY(mutex_) = kFirstPause;
  std::uint64_t fork_registration_;
};

}  // namespace modcache::remote
