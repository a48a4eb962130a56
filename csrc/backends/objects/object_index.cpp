// SPDX-License-Identifier: Apache-2.0
#include "backends/objects/object_index.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/process_wide.h"
#include "base/random.h"

namespace modcache::backends {
namespace {

// How long a look at one writer counts for: 20 writers are asked each second at most.
constexpr std::int64_t kAgePerWriterMs = 50;

struct ObjectIndexes : ProcessWide<ObjectIndexes> {
  std::map<std::string, std::shared_ptr<ObjectIndex>> by_address MODCACHE_GUARDED_BY(mutex);
};

using Runs = std::map<std::uint32_t, std::uint32_t>;

bool is_covered(const Runs& runs, const SegmentRange& range) {
  const auto after = runs.upper_bound(range.first);
  return after != runs.begin() && std::prev(after)->second >= range.last;
}

void cover(Runs& runs, const SegmentRange& range) {
  std::uint32_t first = range.first;
  std::uint32_t last = range.last;
  auto next = runs.upper_bound(first);
  if (next != runs.begin()) {
    const auto before = std::prev(next);
    if (std::uint64_t{before->second} + 1 >= first) {
      first = before->first;
      last = std::max(last, before->second);
      next = runs.erase(before);
    }
  }
  while (next != runs.end() && next->first <= std::uint64_t{last} + 1) {
    last = std::max(last, next->second);
    next = runs.erase(next);
  }
  runs[first] = last;
}

}  // namespace

Digest128 digest_of_name(std::string_view name) { return blake2b_128(name); }

std::shared_ptr<ObjectIndex> ObjectIndex::of(const std::string& address) {
  // Outside of the lock, since it takes one of fork's.
  auto made = std::make_shared<ObjectIndex>();
  ObjectIndexes& all = ObjectIndexes::instance();
  MutexLock lock(all.mutex);
  return all.by_address.emplace(address, std::move(made)).first->second;
}

ObjectIndex::ObjectIndex() : fork_registration_(hold_across_fork(mutex_)) {}
ObjectIndex::~ObjectIndex() { stop_holding_across_fork(fork_registration_); }

std::vector<std::optional<Place>> ObjectIndex::find_all(const std::vector<Digest128>& names) {
  std::vector<std::optional<Place>> found(names.size());
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto place = places_.find(names[i]);
    if (place != places_.end()) found[i] = place->second;
  }
  return found;
}

void ObjectIndex::apply(const std::vector<DigestPlace>& places) {
  bool is_full = false;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, place] : places) {
      const auto known = places_.find(name);
      if (known != places_.end()) {
        if (known->second.time_us < place.time_us) known->second = place;
      } else if (places_.size() < kMostPlaces) {
        places_.emplace(name, place);
      } else {
        is_full = true;
      }
    }
  }
  if (is_full) {
    log(LogLevel::kWarning, "remote-index-full",
        "the remote tier holds more values than this process keeps the places of; the others are "
        "not found");
  }
}

void ObjectIndex::forget(const Digest128& name, const Place& place) {
  MutexLock lock(mutex_);
  const auto known = places_.find(name);
  if (known != places_.end() && known->second == place) places_.erase(known);
}

std::int64_t ObjectIndex::later_time_us(const Digest128& name) {
  const std::int64_t now = now_us();
  MutexLock lock(mutex_);
  const auto known = places_.find(name);
  return known == places_.end() ? now : std::max(now, known->second.time_us + 1);
}

bool ObjectIndex::is_look_due(std::int64_t age_ms) {
  MutexLock lock(mutex_);
  const std::int64_t now_ms = steady_now_ms();
  const std::int64_t least_ms = age_ms == kLookNow ? 0 : std::max(age_ms, least_age_ms_);
  if (was_completed_ && now_ms - last_look_ms_ < least_ms) return false;
  last_look_ms_ = now_ms;
  return true;
}

void ObjectIndex::end_look(bool is_complete, std::size_t asked) {
  MutexLock lock(mutex_);
  was_completed_ = is_complete;
  least_age_ms_ = kAgePerWriterMs * static_cast<std::int64_t>(asked);
}

bool ObjectIndex::is_of_this_process(std::uint64_t writer) {
  const auto own = own_writers_.find(writer);
  return own != own_writers_.end() && own->second == fork_generation();
}

bool ObjectIndex::is_lost(const WriterState& writer) {
  return writer.announced_at_ms == 0 && is_of_this_process(writer.id);
}

void ObjectIndex::note_lost_writers(const std::vector<ListedWriter>& listed) {
  for (const auto& writer : idle_writers_) {
    const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const ListedWriter& one) {
      return one.id == writer->id;
    });
    if (!is_listed) writer->announced_at_ms = 0;
  }
}

bool ObjectIndex::has_lost_writer() {
  MutexLock lock(mutex_);
  for (const auto& writer : idle_writers_) {
    if (is_lost(*writer)) return true;
  }
  return false;
}

std::vector<std::uint64_t> ObjectIndex::writers_to_ask(const std::vector<ListedWriter>& listed) {
  const std::int64_t now = now_us();
  const std::int64_t now_ms = steady_now_ms();
  std::vector<std::uint64_t> never_read;
  std::vector<std::uint64_t> read_before;
  MutexLock lock(mutex_);
  // Writers that are no longer listed are kept, as they may be again, but not without a bound.
  if (read_states_.size() > 2 * kMostWriters) read_states_.clear();
  note_lost_writers(listed);
  for (const ListedWriter& writer : listed) {
    if (is_of_this_process(writer.id)) continue;
    const auto [found, is_new] = read_states_.try_emplace(writer.id);
    ReadState& state = found->second;
    if (state.announced_us != writer.announced_us) {
      const bool is_old = is_new && writer.announced_us < now - kWriterIsOldUs;
      state.changed_at_ms = is_old ? 0 : now_ms;
      state.announced_us = writer.announced_us;
    }
    if (!state.head_checksum.has_value()) {
      never_read.push_back(writer.id);
    } else if (state.changed_at_ms != 0 && state.asked_at_ms - state.changed_at_ms < kActiveForMs) {
      // Once more after it was active: it announces nothing new for a while.
      read_before.push_back(writer.id);
    }
  }
  never_read.insert(never_read.end(), read_before.begin(), read_before.end());
  return never_read;
}

std::vector<SegmentRange> ObjectIndex::segments_to_read(const Head& head,
                                                        std::uint64_t head_checksum) {
  std::vector<SegmentRange> wanted;
  MutexLock lock(mutex_);
  const ReadState& state = read_states_[head.writer];
  if (state.head_checksum == head_checksum) return wanted;
  for (const SegmentRange& range : head.segments) {
    if (!is_covered(state.read, range)) wanted.push_back(range);
  }
  return wanted;
}

void ObjectIndex::note_read(std::uint64_t writer, const SegmentRange& range) {
  MutexLock lock(mutex_);
  cover(read_states_[writer].read, range);
}

void ObjectIndex::note_head(std::uint64_t writer, std::uint64_t head_checksum) {
  MutexLock lock(mutex_);
  ReadState& state = read_states_[writer];
  state.head_checksum = head_checksum;
  state.asked_at_ms = steady_now_ms();
}

std::unique_ptr<WriterState> ObjectIndex::borrow_writer() {
  MutexLock lock(mutex_);
  // A parent's writers are the parent's.
  idle_writers_.erase(std::remove_if(idle_writers_.begin(), idle_writers_.end(),
                                     [](const std::unique_ptr<WriterState>& writer) {
                                       return writer->fork_generation != fork_generation();
                                     }),
                      idle_writers_.end());
  auto chosen = idle_writers_.end();
  for (auto writer = idle_writers_.begin(); writer != idle_writers_.end(); ++writer) {
    if (chosen == idle_writers_.end() || is_lost(**writer)) chosen = writer;
  }
  if (chosen != idle_writers_.end()) {
    std::unique_ptr<WriterState> idle = std::move(*chosen);
    idle_writers_.erase(chosen);
    return idle;
  }
  auto made = std::make_unique<WriterState>();
  made->id = random_number();
  made->fork_generation = fork_generation();
  own_writers_[made->id] = made->fork_generation;
  return made;
}

void ObjectIndex::give_back(std::unique_ptr<WriterState> writer) {
  MutexLock lock(mutex_);
  idle_writers_.push_back(std::move(writer));
}

}  // namespace modcache::backends
