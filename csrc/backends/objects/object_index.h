// SPDX-License-Identifier: Apache-2.0
//
// ObjectIndex: what a process knows of the values of one address: where each is, how far each
// writer's news were read, and under which ids this process writes. Backends of one address share
// it, as each is one thread's. It makes no request; news.h fills it.
//
// Thread-safe. A forked child goes on with what its parent knew, but writes under ids of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backends/objects/layout.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/mutex.h"

namespace modcache::backends {

// BLAKE2b, since names may have parts that strangers chose.
Digest128 digest_of_name(std::string_view name);

// The state of one writer. A backend borrows it, so that no two threads have it at once.
struct WriterState {
  struct Segment {
    SegmentRange range;
    int level = 0;  // how often its content was merged
  };

  std::uint64_t id = 0;
  std::uint64_t fork_generation = 0;
  std::uint32_t next_segment = 1;
  std::uint32_t next_pack = 1;
  std::vector<Segment> segments;
  std::int64_t announced_us = 0;     // the last announcement that was found in the list
  std::int64_t announced_at_ms = 0;  // by the steady clock; 0: it is not in the list
  std::int64_t next_check_ms = 0;    // when to see whether it still is in the list
  std::int64_t check_after_ms = 0;
};

class ObjectIndex {
 public:
  // Places that are known beyond these are dropped: some 1 GiB of memory.
  static constexpr std::size_t kMostPlaces = std::size_t{1} << 23;
  // A writer announces itself again when it writes after so long, and is asked for news for more
  // than twice as long after each announcement.
  static constexpr std::int64_t kAnnounceEveryMs = 60'000;
  static constexpr std::int64_t kActiveForMs = 150'000;
  static constexpr std::int64_t kWriterIsOldUs = 600'000'000;

  // The index of an address in this process; made at its first use.
  static std::shared_ptr<ObjectIndex> of(const std::string& address);

  ObjectIndex();
  ~ObjectIndex();
  ObjectIndex(const ObjectIndex&) = delete;
  ObjectIndex& operator=(const ObjectIndex&) = delete;

  using DigestPlace = std::pair<Digest128, Place>;

  // The place of each name, also where it says that the value was removed.
  std::vector<std::optional<Place>> find_all(const std::vector<Digest128>& names);
  // Keeps the later place of each name.
  void apply(const std::vector<DigestPlace>& places);
  // A value turned out not to be there any more. A later place of this name stays.
  void forget(const Digest128& name, const Place& place);
  // A time for a place that has to count more than the one known: clocks of machines differ.
  std::int64_t later_time_us(const Digest128& name);

  // --- News ---

  // Returns whether it is the caller's turn to look for news, which is so when the last look is
  // `age_ms` ago, or was not completed; with kLookNow always.
  static constexpr std::int64_t kLookNow = -1;
  bool is_look_due(std::int64_t age_ms);
  // `asked` is how many writers were asked: the more there are, the rarer the looks.
  void end_look(bool is_complete, std::size_t asked);
  // Those of the listed writers that may have news, what was never read first. Writers of this
  // process that are missing in the list, as another process overwrote it, have to announce
  // themselves again.
  std::vector<std::uint64_t> writers_to_ask(const std::vector<ListedWriter>& listed);
  // The segments of the head that have something new. Empty, too, for a head that was read before.
  std::vector<SegmentRange> segments_to_read(const Head& head, std::uint64_t head_checksum);
  void note_read(std::uint64_t writer, const SegmentRange& range);
  // Everything in this head was read that can be.
  void note_head(std::uint64_t writer, std::uint64_t head_checksum);

  // --- Writers of this process ---

  // A writer that nobody else of this process has, of which it makes as many as write at once.
  // One that has to announce itself comes first.
  std::unique_ptr<WriterState> borrow_writer();
  void give_back(std::unique_ptr<WriterState> writer);
  bool has_lost_writer();

 private:
  struct ReadState {
    std::int64_t announced_us = 0;
    std::int64_t changed_at_ms = 0;  // when another announcement was seen last; 0: long ago
    std::int64_t asked_at_ms = 0;    // when its head was read last
    std::optional<std::uint64_t> head_checksum;
    std::map<std::uint32_t, std::uint32_t> read;  // runs of segments, first -> last
  };
  bool is_of_this_process(std::uint64_t writer) MODCACHE_REQUIRES(mutex_);
  bool is_lost(const WriterState& writer) MODCACHE_REQUIRES(mutex_);
  void note_lost_writers(const std::vector<ListedWriter>& listed) MODCACHE_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t fork_registration_;
  std::unordered_map<Digest128, Place, Digest128Hash> places_ MODCACHE_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, ReadState> read_states_ MODCACHE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> own_writers_ MODCACHE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<WriterState>> idle_writers_ MODCACHE_GUARDED_BY(mutex_);
  bool was_completed_ MODCACHE_GUARDED_BY(mutex_) = false;
  std::int64_t last_look_ms_ MODCACHE_GUARDED_BY(mutex_) = 0;
  std::int64_t least_age_ms_ MODCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace modcache::backends
