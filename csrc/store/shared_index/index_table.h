// SPDX-License-Identifier: Apache-2.0
//
// IndexTable: one file of the shared index (FORMAT.md, `index.map`), mapped: a hash table with open
// addressing whose slots are four atomic numbers. SharedIndex decides which file is the one in use.
//
// Who may call what: find(), note_use() and for_each() anybody at any time; the rest whoever holds
// the directory's lock, one thread at a time. Nothing in the file is believed without bounds: it
// may be damaged, and other processes write to it. A file that somebody cuts short while it is
// mapped kills the process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/found_entries.h"

namespace modcache::store {

inline constexpr std::uint32_t kIndexTableVersion = 1;

class IndexTable {
 public:
  // What a table belongs to; with any of it different, it is of no use. A table of another boot may
  // have lost any of its pages.
  struct Owner {
    std::array<std::uint64_t, 2> boot{};
    std::uint64_t database_inode = 0;
    std::uint64_t epoch = 0;
    friend bool operator==(const Owner& a, const Owner& b) {
      return a.boot == b.boot && a.database_inode == b.database_inode && a.epoch == b.epoch;
    }
  };
  struct Size {
    std::uint64_t slots = 0;
    std::uint64_t segments = 0;
    // For `entries` of them, with room for more.
    static Size for_entries(std::uint64_t entries, std::uint64_t segments);
  };
  struct Place {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
  };
  struct Found {
    std::uint64_t tag = 0;
    Place place;
    Sequence sequence = 0;
    policy::Usage usage;
  };
  enum class Answer { kFound, kAbsent, kUnknown };

  // kNotFound, kCorruption: there is none that belongs to `owner`.
  static Result<std::shared_ptr<IndexTable>> open(fs::FileSystem& file_system,
                                                  const std::string& path, const Owner& owner,
                                                  bool is_writable);
  // Takes the place of whatever was there. Nobody uses it before SharedIndex has said so.
  static Result<std::shared_ptr<IndexTable>> create(fs::FileSystem& file_system,
                                                    const std::string& path, const Owner& owner,
                                                    Size size, bool is_building);

  // Tells this file from all others.
  std::uint64_t generation() const { return generation_; }

  Answer find(std::uint64_t tag, Found& found) const;
  void expect(std::uint64_t tag) const { __builtin_prefetch(slot(home(tag))); }
  void note_use(std::uint64_t tag, Sequence sequence, policy::Usage usage);
  void for_each(const std::function<void(const Found&)>& visit) const;
  // What the file says, at most one for each slot. Nothing but speed may depend on it: the number
  // is under no checksum.
  std::uint64_t entries() const;
  // False: no database with this `last_sequence` has needed so large a table.
  bool is_plausible(Sequence last_sequence) const;
  std::uint64_t size_bytes() const { return mapping_->size_bytes(); }
  // False: somebody cut the file short.
  bool is_whole() const;

  // While a table is built from the database it says nothing of what is absent, and keeps what was
  // removed meanwhile.
  bool is_building() const { return word(kBuildingOffset).load(std::memory_order_acquire) != 0; }
  void finish_building();
  // Whoever builds a table holds its lock: it ends with the process.
  Result<bool> try_lock() const { return file_->try_lock(); }
  void unlock() const { file_->unlock(); }

  // Odd between begin_change() and end_change(): what is absent then may be on its way.
  bool is_changing() const {
    return (word(kChangeOffset).load(std::memory_order_acquire) & 1) != 0;
  }
  void begin_change();
  void end_change();
  Sequence last_sequence() const {
    return word(kLastSequenceOffset).load(std::memory_order_acquire);
  }
  void set_last_sequence(Sequence sequence) {
    word(kLastSequenceOffset).store(sequence, std::memory_order_release);
  }

  // False: there is no room; grown() has.
  // `instead_of` is what the entry had before (0: nothing). When the slot says otherwise it is
  // another entry's with the same tag, and from now on says nothing of either.
  bool insert(const Found& entry, Sequence instead_of);
  // What the database had when building began, or later: what the table knows is as new or newer.
  bool insert_older(const Found& entry);
  // Passed over when the slot has another sequence.
  bool remove(std::uint64_t tag, Sequence sequence);

  // A larger table with the same contents, in place of this one.
  Result<std::shared_ptr<IndexTable>> grown(fs::FileSystem& file_system,
                                            const std::string& path) const;

  static std::uint16_t encode_size(std::uint64_t size_bytes);
  static std::uint64_t decode_size(std::uint16_t size_class);

 private:
  using Word = std::atomic<std::uint64_t>;
  // Numbers of segments that are none: of a slot that is several entries', and of one that was
  // removed while the table was built.
  static constexpr std::uint64_t kShared = (1 << 24) - 1;
  static constexpr std::uint64_t kRemoved = (1 << 24) - 2;

  static constexpr std::size_t kChangeOffset = 128;
  static constexpr std::size_t kLastSequenceOffset = 136;
  static constexpr std::size_t kEntriesOffset = 144;
  static constexpr std::size_t kBuildingOffset = 152;
  static constexpr std::size_t kSegmentCountOffset = 160;

  struct RawSlot {
    std::uint64_t tag = 0;
    Sequence sequence = 0;
    std::uint64_t place = 0;
    std::uint64_t extra = 0;
  };

  IndexTable(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping, Owner owner,
             Size size, std::uint64_t generation);
  Word& word(std::size_t offset) const {
    return *reinterpret_cast<Word*>(mapping_->data() + offset);
  }
  Word* slot(std::uint64_t i) const {
    return reinterpret_cast<Word*>(mapping_->data() + slots_begin_) + 4 * i;
  }
  // Keeps the order of the tags, so that a larger table is filled from one end to the other.
  std::uint64_t home(std::uint64_t tag) const {
    return (tag >> 30) * size_.slots >> 34;  // of at most 2^30 slots
  }
  bool read(std::uint64_t i, RawSlot& raw) const;
  void write(std::uint64_t i, const RawSlot& raw);
  bool decode(const RawSlot& raw, Found& found) const;
  std::optional<RawSlot> encode(const Found& entry);
  // The slot with the tag, or the free one where it belongs; none when there is no room.
  std::optional<std::uint64_t> place_for(std::uint64_t tag) const;
  bool has_room() const;
  std::uint64_t counted_entries() const;
  std::uint64_t listed_segments() const;
  bool add(std::uint64_t i, const RawSlot& raw);
  void set_segment(std::uint64_t i, RawSlot raw, std::uint64_t number);
  static std::uint64_t with_check(const RawSlot& raw);
  void erase(std::uint64_t i);
  std::optional<std::uint64_t> segment_number(std::uint64_t segment);
  void add_entries(std::int64_t count);

  const std::unique_ptr<fs::File> file_;
  const std::shared_ptr<fs::Mapping> mapping_;
  const Owner owner_;
  const Size size_;
  const std::uint64_t slots_begin_;
  const std::uint64_t generation_;
  // What the file's list of segments says, as far as it was read; for whoever holds the lock.
  std::unordered_map<std::uint64_t, std::uint64_t> segment_numbers_;
};

}  // namespace modcache::store
