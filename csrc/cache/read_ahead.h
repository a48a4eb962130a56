// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: one background thread that brings entries from a directory into the memory tier,
// before somebody asks for them.
//
// It asks the kernel for many entries at a time, which a disk reads in few large pieces, and copies
// them in the order of the request. It is made when it is first needed. Nobody waits for it: it
// holds no lock while it reads, and what does not fit into its queue is not brought. Entries of one
// request never push each other out of memory: it ends with the first that would. Nothing is
// brought while the process may not read. Thread-safe. A forked child starts with an empty queue
// and makes its own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "cache/context.h"
#include "cache/disk_tier.h"
#include "cache/memory_store.h"
#include "cache/place.h"
#include "cache/value.h"

namespace modcache::cache {

class ReadAhead {
 public:
  // Keys that wait, of all requests together.
  static constexpr std::size_t kMostKeys = 1 << 18;
  // This much is read at once, unless one entry is larger. It may be read in vain.
  static constexpr std::size_t kBytesAtOnce = 8 << 20;
  static constexpr std::size_t kKeysAtOnce = 256;
  // Before they are read here, the kernel is asked for as much as this, in the order on disk.
  static constexpr std::size_t kKeysExpected = 4096;
  static constexpr std::size_t kBytesExpected = 64 << 20;

  struct Request {
    // Nothing is read for a cache that has ended by then.
    std::weak_ptr<MemoryStore> memory;
    std::weak_ptr<DiskTier> disk;
    ContextPtr context;
    Form form = Form::kWhole;
    std::vector<std::string> keys;
    bool pushes_out = true;  // false: only what there is free room for is brought
  };

  // `may_read` is asked on the thread, before each look at a directory. All three must outlive this
  // object, except as stop() says.
  ReadAhead(const ValueFormat& format, Places& places, std::function<bool()> may_read);
  // REQUIRES: stop() was called, or nothing was asked for.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void ask(Request request);

  // Returns when nothing is asked for any more.
  void wait_until_idle();
  // Forgets what is asked for, waits for the entries that are being read, and ends the thread.
  void stop();

 private:
  // The queue, and the condition its thread waits for. A forked child starts with another one: in
  // the old, a thread that does not exist there waits for ever.
  struct Queue {
    std::uint64_t fork_generation = modcache::fork_generation();
    CondVar changed;
    std::deque<Request> requests;
    std::size_t keys = 0;
    bool is_busy = false;
    bool is_stopping = false;
    std::thread thread;
  };

  Queue& queue() MODCACHE_REQUIRES(mutex_);
  void work_until_stopped(Queue& queue);
  bool may_go_on(Queue& queue);
  void bring(const Request& request, Queue& queue);
  struct Errand;
  // False: no more of this request.
  static std::size_t expect(const Request& request, std::size_t begin, MemoryStore& memory,
                            DiskTier& disk);
  bool bring_some(const Errand& errand, const std::vector<std::string_view>& keys, Queue& queue);
  EntryPtr at_place(const Errand& errand, EntryPtr entry) const;

  const ValueFormat& format_;
  Places& places_;
  const std::function<bool()> may_read_;
  Mutex mutex_;
  std::unique_ptr<Queue> queue_ MODCACHE_GUARDED_BY(mutex_) = std::make_unique<Queue>();
  std::uint64_t last_load_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::uint64_t fork_registration_;
};

}  // namespace modcache::cache
