// SPDX-License-Identifier: Apache-2.0
#include "cache/read_ahead.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "cache/read_entries.h"

namespace modcache::cache {

ReadAhead::ReadAhead(const ValueFormat& format, Places& places, std::function<bool()> may_read)
    : format_(format),
      places_(places),
      may_read_(std::move(may_read)),
      fork_registration_(hold_across_fork(mutex_)) {}

ReadAhead::~ReadAhead() {
  stop();
  stop_holding_across_fork(fork_registration_);
}

ReadAhead::Queue& ReadAhead::queue() {
  if (queue_->fork_generation != fork_generation()) {
    // Leaked: its thread is the parent's, and so are the tiers that it would let go of.
    queue_.release();  // NOLINT(bugprone-unused-return-value)
    queue_ = std::make_unique<Queue>();
  }
  return *queue_;
}

void ReadAhead::ask(Request request) {
  MutexLock lock(mutex_);
  Queue& queue = this->queue();
  if (queue.is_stopping || request.keys.empty()) return;
  const std::size_t room = kMostKeys - std::min(kMostKeys, queue.keys);
  if (request.keys.size() > room) request.keys.resize(room);
  if (request.keys.empty()) return;
  queue.keys += request.keys.size();
  queue.requests.push_back(std::move(request));
  if (queue.thread.joinable()) {
    queue.changed.notify_all();
    return;
  }
  try {
    queue.thread = std::thread([this, &queue] { work_until_stopped(queue); });
  } catch (const std::exception& error) {  // no thread is to be had: nothing is brought
    queue.requests.clear();
    queue.keys = 0;
    log(LogLevel::kWarning, "read-ahead",
        std::string("no thread could be started to read ahead: ") + error.what());
  }
}

void ReadAhead::wait_until_idle() {
  MutexLock lock(mutex_);
  Queue& queue = this->queue();
  while (!queue.requests.empty() || queue.is_busy) queue.changed.wait(mutex_);
}

void ReadAhead::stop() {
  std::thread ending;
  {
    MutexLock lock(mutex_);
    Queue& queue = this->queue();
    queue.requests.clear();
    queue.keys = 0;
    if (!queue.thread.joinable()) return;
    queue.is_stopping = true;
    queue.changed.notify_all();
    ending = std::move(queue.thread);
  }
  ending.join();
  // Whoever asks again, after a directory was closed, gets another thread.
  MutexLock lock(mutex_);
  queue().is_stopping = false;
}

void ReadAhead::work_until_stopped(Queue& queue) {
  while (true) {
    Request request;
    {
      MutexLock lock(mutex_);
      queue.is_busy = false;
      queue.changed.notify_all();
      while (queue.requests.empty() && !queue.is_stopping) queue.changed.wait(mutex_);
      if (queue.is_stopping) return;
      request = std::move(queue.requests.front());
      queue.requests.pop_front();
      queue.keys -= request.keys.size();
      queue.is_busy = true;
    }
    try {
      bring(request, queue);
    } catch (const std::exception& error) {  // no memory
      log(LogLevel::kWarning, "read-ahead", std::string("reading ahead failed: ") + error.what());
    }
  }
}

bool ReadAhead::may_go_on(Queue& queue) {
  {
    MutexLock lock(mutex_);
    if (queue.is_stopping) return false;
  }
  return may_read_();
}

// A request while it is carried out.
struct ReadAhead::Errand {
  const ContextPtr& context;
  Form form;
  MemoryStore& memory;
  DiskTier& disk;
  Place place;
  std::uint64_t load;
};

void ReadAhead::bring(const Request& request, Queue& queue) {
  std::uint64_t load = MemoryStore::kFreeRoomOnly;
  if (request.pushes_out) {
    MutexLock lock(mutex_);
    load = ++last_load_;
  }
  std::size_t expected = 0;  // so many of the first keys, or more, are being read by the kernel
  for (std::size_t begin = 0; begin < request.keys.size(); begin += kKeysAtOnce) {
    const auto memory = request.memory.lock();
    const auto disk = request.disk.lock();
    if (memory == nullptr || disk == nullptr || !may_go_on(queue)) return;
    const std::size_t end = std::min(request.keys.size(), begin + kKeysAtOnce);
    while (expected < std::min(request.keys.size(), end + kKeysAtOnce)) {
      expected += expect(request, expected, *memory, *disk);
    }
    std::vector<std::string_view> keys;
    for (std::size_t i = begin; i < end; ++i) {
      const store::EntryId id{*request.context, request.keys[i]};
      if (!memory->holds(id)) keys.emplace_back(request.keys[i]);
    }
    const Errand errand{
        request.context, request.form, *memory, *disk, places_.of(request.context->scope), load};
    if (!keys.empty() && !bring_some(errand, keys, queue)) return;
  }
}

// Has the kernel read what lies on disk of the keys from `begin` on, and returns of how many.
std::size_t ReadAhead::expect(const Request& request, std::size_t begin, MemoryStore& memory,
                              DiskTier& disk) {
  const std::size_t end = std::min(request.keys.size(), begin + kKeysExpected);
  std::vector<std::string_view> keys;
  std::vector<std::size_t> places;
  for (std::size_t i = begin; i < end; ++i) {
    if (memory.holds({*request.context, request.keys[i]})) continue;
    keys.emplace_back(request.keys[i]);
    places.push_back(i);
  }
  if (keys.empty()) return end - begin;
  const std::size_t count = disk.expect(Keys(request.context, keys), kBytesExpected);
  return count < places.size() ? places[count] - begin : end - begin;
}

bool ReadAhead::bring_some(const Errand& errand, const std::vector<std::string_view>& keys,
                           Queue& queue) {
  const Keys asked(errand.context, keys);
  const auto rows_on_disk = errand.disk.find_rows(asked, Access::kRead);
  if (!rows_on_disk.has_value()) return true;
  const FoundRows& found = *rows_on_disk;
  std::size_t next = 0;
  while (next < found.entries().size()) {
    std::vector<std::size_t> rows;
    std::size_t size_bytes = 0;
    for (; next < found.entries().size(); ++next) {
      if (!found.has(next)) continue;
      const std::size_t more_bytes = found.payload_size_bytes(next);
      if (!rows.empty() && size_bytes + more_bytes > kBytesAtOnce) break;
      size_bytes += more_bytes;
      rows.push_back(next);
    }
    if (rows.empty()) return true;
    if (!may_go_on(queue) || !errand.memory.has_room(size_bytes / rows.size(), errand.load)) {
      return false;
    }
    auto entries = read_entries(format_, errand.form, found, rows);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const std::size_t i = rows[k];
      if (!entries[k].is_ok()) {
        errand.disk.refuse(asked.id(i), found.sequence(i), entries[k].status(), Access::kRead);
        continue;
      }
      HeldEntry held{at_place(errand, std::move(entries[k]).value()), found.sequence(i),
                     found.removals()};
      if (!errand.memory.put_ahead(asked.addresses[i], errand.context, keys[i], std::move(held),
                                   errand.load)) {
        return false;
      }
    }
  }
  return true;
}

EntryPtr ReadAhead::at_place(const Errand& errand, EntryPtr entry) const {
  if (errand.place.is_host()) return entry;
  Entry moved = *entry;
  moved.value = format_.moved(std::move(moved.value), errand.place);
  return std::make_shared<const Entry>(std::move(moved));
}

}  // namespace modcache::cache
