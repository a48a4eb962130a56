// SPDX-License-Identifier: Apache-2.0
//
// IndexTable: one mapped file of the shared index (FORMAT.md, `index.map`): a hash table with open
// addressing whose slots are four atomic numbers. SharedIndex decides which file is in use.
//
// Anybody may call find(), note_use(), for_each() and sample() at any time; the rest is for the
// owner of the directory's lock, one thread at a time. Everything in the file is bounds-checked: it
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

#include "base/result.h"
#include "fs/file_system.h"
#include "policy/policy.h"
#include "store/entry/entry_id.h"

namespace modcache::store {

inline constexpr std::uint32_t kIndexTableVersion = 1;

class IndexTable {
 public:
  // Identifies the database that a table mirrors; a table with another owner is of no use. A table
  // of another boot may have lost any of its pages.
  struct Owner {
    std::array<std::uint64_t, 2> boot{};
    std::uint64_t database_inode = 0;
    std::uint64_t epoch = 0;
    bool operator==(const Owner&) const = default;
  };
  struct Size {
    std::uint64_t slots = 0;
    std::uint64_t segments = 0;
    // Returns the size for this many entries, with room for more.
    static Size for_entries(std::uint64_t entries, std::uint64_t segments);
  };
  struct Slot {
    std::uint64_t tag = 0;  // half of the address, by which policies know the entry
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;
    Sequence sequence = 0;
    std::uint64_t size_bytes = 0;  // of the whole record; found rounded up by at most 0.1 %
    policy::Usage usage;           // of_holder is the table's
  };
  enum class Answer { kFound, kAbsent, kUnknown };

  // kNotFound, kCorruption: there is no table of this `owner`.
  static Result<std::shared_ptr<IndexTable>> open(fs::FileSystem& file_system,
                                                  const std::string& path, const Owner& owner,
                                                  bool is_writable);
  // Replaces whatever is at `path`. Nobody uses the table before SharedIndex announces it.
  static Result<std::shared_ptr<IndexTable>> create(fs::FileSystem& file_system,
                                                    const std::string& path, const Owner& owner,
                                                    Size size, bool is_building);

  // Identifies this file among all others.
  std::uint64_t generation() const { return generation_; }

  Answer find(std::uint64_t tag, Slot& found) const;
  void expect(std::uint64_t tag) const { __builtin_prefetch(slot(home(tag))); }
  // Returns what a use makes of an entry's usage.
  using Used = std::function<policy::Usage(policy::Usage)>;
  // Does nothing when the slot has another sequence. `used` is called at most once.
  void note_use(std::uint64_t tag, Sequence sequence, const Used& used);
  void for_each(const std::function<void(const Slot&)>& visit) const;
  // Visits up to `count` entries; `seed` chooses them. Fewer when most slots are free.
  void sample(std::uint64_t seed, std::size_t count,
              const std::function<void(const Slot&)>& visit) const;
  // The count in the file, at most one per slot. Only speed may depend on it, as no checksum covers
  // it.
  std::uint64_t entries() const;
  // Returns false when no database with this `last_sequence` needs so large a table.
  bool is_plausible(Sequence last_sequence) const;
  std::uint64_t size_bytes() const { return mapping_->size_bytes(); }
  // Returns false when somebody cut the file short.
  bool is_whole() const;

  // While a table is built from the database it cannot tell what is absent, and remembers what is
  // removed.
  bool is_building() const { return word(kBuildingOffset).load(std::memory_order_acquire) != 0; }
  void finish_building();
  // The builder of a table holds its lock, which ends with the process.
  Result<bool> try_lock() const { return file_->try_lock(); }
  void unlock() const { file_->unlock(); }

  // The count is odd between begin_change() and end_change(): an entry that is absent may just be
  // moving.
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

  // Returns false when there is no room; grown() makes some. `instead_of` is the entry's previous
  // sequence (0: none). When the slot has another one, it belongs to another entry with the same
  // tag, and from now on it answers for neither.
  bool insert(const Slot& entry, Sequence instead_of);
  // Adds an entry as it was in the database when building began, or later. An entry that the table
  // has already is as new or newer, and stays.
  bool insert_older(const Slot& entry);
  // Does nothing when the slot has another sequence.
  bool remove(std::uint64_t tag, Sequence sequence);

  // Returns a larger table with the same contents, which replaces this one.
  Result<std::shared_ptr<IndexTable>> grown(fs::FileSystem& file_system,
                                            const std::string& path) const;

  static std::uint16_t encode_size(std::uint64_t size_bytes);
  static std::uint64_t decode_size(std::uint16_t size_class);

 private:
  using Word = std::atomic<std::uint64_t>;
  // Special segment numbers: of a slot that several entries share, and of one whose entry was
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
    return (tag >> 30) * size_.slots >> 34;  // for at most 2^30 slots
  }
  bool read(std::uint64_t i, RawSlot& raw) const;
  void write(std::uint64_t i, const RawSlot& raw);
  bool decode(const RawSlot& raw, Slot& found) const;
  std::optional<RawSlot> encode(const Slot& entry);
  // Returns the slot with the tag, or the free one where it belongs; nothing when there is no room.
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
  // The file's list of segments as far as it was read, for the owner of the lock.
  std::unordered_map<std::uint64_t, std::uint64_t> segment_numbers_;
};

}  // namespace modcache::store
