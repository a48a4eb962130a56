// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/index_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "store/entry/entry_id.h"
#include "store/shared_index/index_table_layout.h"

namespace modcache::store {
namespace {

using index_table_layout::kHeaderBytes;
using index_table_layout::kMostProbes;
using index_table_layout::slots_begin;

constexpr unsigned kOffsetBits = 40;
constexpr std::uint64_t kMostSequence = (std::uint64_t{1} << 48) - 1;
constexpr std::uint64_t kOffsetUnitBytes = 64;

std::uint64_t usage_bits(const policy::Usage& usage) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &usage, sizeof bits);
  return bits;
}

policy::Usage usage_of(std::uint64_t bits) {
  policy::Usage usage;
  std::memcpy(static_cast<void*>(&usage), &bits, sizeof bits);
  return usage;
}

}  // namespace

IndexTable::IndexTable(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping,
                       Owner owner, Size size, std::uint64_t generation)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      owner_(owner),
      size_(size),
      slots_begin_(slots_begin(size)),
      generation_(generation) {}

bool IndexTable::is_whole() const {
  auto info = file_->info();
  return info.is_ok() && info.value().size_bytes >= mapping_->size_bytes();
}

// Returns false when the slot changed meanwhile or is damaged. A free slot has sequence 0.
bool IndexTable::read(std::uint64_t i, RawSlot& raw) const {
  const Word* words = slot(i);
  // A slot that changes during the loads has another second word afterwards, or fails the check.
  const std::uint64_t checked = words[1].load(std::memory_order_acquire);
  raw.sequence = checked & kMostSequence;
  if (checked == 0) return true;
  raw.tag = words[0].load(std::memory_order_acquire);
  raw.place = words[2].load(std::memory_order_acquire);
  raw.extra = words[3].load(std::memory_order_acquire);
  return words[1].load(std::memory_order_acquire) == checked && checked == with_check(raw);
}

void IndexTable::write(std::uint64_t i, const RawSlot& raw) {
  Word* words = slot(i);
  // While it is written, the slot looks free; find() believes that only outside of a change.
  words[1].store(0, std::memory_order_release);
  words[0].store(raw.tag, std::memory_order_release);
  words[2].store(raw.place, std::memory_order_release);
  words[3].store(raw.extra, std::memory_order_release);
  words[1].store(with_check(raw), std::memory_order_release);
}

// Puts a check into the 16 bits that no sequence needs. So a damaged slot, and nearly every slot
// that changes while it is read, is not believed, not even that it belongs to another entry.
std::uint64_t IndexTable::with_check(const RawSlot& raw) {
  std::uint64_t mixed = raw.tag * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 29) ^ raw.sequence) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 32) ^ raw.place) * 0x94d049bb133111eb;
  return (mixed & ~kMostSequence) | raw.sequence;
}

bool IndexTable::decode(const RawSlot& raw, Slot& found) const {
  const std::uint64_t number = raw.place >> kOffsetBits;
  if (number >= listed_segments()) return false;
  found.tag = raw.tag;
  found.segment = word(kHeaderBytes + 8 * number).load(std::memory_order_relaxed);
  found.offset = (raw.place & ((std::uint64_t{1} << kOffsetBits) - 1)) * kOffsetUnitBytes;
  found.sequence = raw.sequence;
  found.usage = usage_of(raw.extra);
  found.size_bytes = decode_size(found.usage.of_holder);
  return true;
}

IndexTable::Answer IndexTable::find(std::uint64_t tag, Slot& found) const {
  const std::uint64_t before = word(kChangeOffset).load(std::memory_order_acquire);
  const std::uint64_t first = home(tag);
  bool has_end = false;
  for (std::uint64_t i = first; i < first + kMostProbes && !has_end; ++i) {
    RawSlot raw;
    if (!read(i, raw)) return Answer::kUnknown;
    has_end = raw.sequence == 0;
    if (has_end || raw.tag != tag) continue;
    return decode(raw, found) ? Answer::kFound : Answer::kUnknown;
  }
  // While slots are moved, a search may miss one.
  const bool is_settled = has_end && (before & 1) == 0 && !is_building() &&
                          word(kChangeOffset).load(std::memory_order_acquire) == before;
  return is_settled ? Answer::kAbsent : Answer::kUnknown;
}

void IndexTable::note_use(std::uint64_t tag, Sequence sequence, const Used& used) {
  const std::uint64_t first = home(tag);
  for (std::uint64_t i = first; i < first + kMostProbes; ++i) {
    RawSlot raw;
    if (!read(i, raw) || raw.sequence == 0) return;
    if (raw.tag != tag) continue;
    if (raw.sequence != sequence || raw.place >> kOffsetBits >= listed_segments()) return;
    const policy::Usage known = usage_of(raw.extra);
    policy::Usage usage = used(known);
    usage.of_holder = known.of_holder;
    const std::uint64_t bits = usage_bits(usage);
    // A page that nothing is written to stays clean.
    if (bits == raw.extra) return;
    // Fails when another process moved the slot or noted a use: then this use is lost, which is
    // harmless.
    slot(i)[3].compare_exchange_strong(raw.extra, bits, std::memory_order_acq_rel);
    return;
  }
}

void IndexTable::for_each(const std::function<void(const Slot&)>& visit) const {
  for (std::uint64_t i = 0; i < size_.slots + kMostProbes; ++i) {
    RawSlot raw;
    Slot found;
    if (read(i, raw) && raw.sequence != 0 && decode(raw, found)) visit(found);
  }
}

void IndexTable::sample(std::uint64_t seed, std::size_t count,
                        const std::function<void(const Slot&)>& visit) const {
  if (size_.slots == 0) return;
  for (std::size_t tries = 4 * count; count > 0 && tries > 0; --tries) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    RawSlot raw;
    Slot found;
    if (!read((seed >> 24) % size_.slots, raw) || raw.sequence == 0 || !decode(raw, found))
      continue;
    visit(found);
    --count;
  }
}

void IndexTable::begin_change() { word(kChangeOffset).fetch_add(1, std::memory_order_acq_rel); }
void IndexTable::end_change() { word(kChangeOffset).fetch_add(1, std::memory_order_acq_rel); }

void IndexTable::add_entries(std::int64_t count) {
  word(kEntriesOffset).fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
}

std::optional<std::uint64_t> IndexTable::segment_number(std::uint64_t segment) {
  Word& count_word = word(kSegmentCountOffset);
  const std::uint64_t count = listed_segments();
  for (std::uint64_t number = segment_numbers_.size(); number < count; ++number) {
    segment_numbers_[word(kHeaderBytes + 8 * number).load(std::memory_order_relaxed)] = number;
  }
  const auto known = segment_numbers_.find(segment);
  if (known != segment_numbers_.end()) return known->second;
  if (count >= size_.segments) return std::nullopt;
  word(kHeaderBytes + 8 * count).store(segment, std::memory_order_relaxed);
  segment_numbers_[segment] = count;
  count_word.store(count + 1, std::memory_order_release);
  return count;
}

std::optional<IndexTable::RawSlot> IndexTable::encode(const Slot& entry) {
  const auto number = segment_number(entry.segment);
  if (!number) return std::nullopt;
  const std::uint64_t unit = entry.offset / kOffsetUnitBytes;
  if (unit >> kOffsetBits != 0 || entry.sequence > kMostSequence) return std::nullopt;
  policy::Usage usage = entry.usage;
  usage.of_holder = encode_size(entry.size_bytes);
  return RawSlot{entry.tag, entry.sequence, *number << kOffsetBits | unit, usage_bits(usage)};
}

std::optional<std::uint64_t> IndexTable::place_for(std::uint64_t tag) const {
  const std::uint64_t first = home(tag);
  for (std::uint64_t i = first; i < first + kMostProbes; ++i) {
    const Word* words = slot(i);
    if (words[1].load(std::memory_order_relaxed) == 0 ||
        words[0].load(std::memory_order_relaxed) == tag) {
      return i;
    }
  }
  return std::nullopt;
}

std::uint64_t IndexTable::entries() const {
  return std::min(word(kEntriesOffset).load(std::memory_order_relaxed), size_.slots);
}

std::uint64_t IndexTable::listed_segments() const {
  return std::min(word(kSegmentCountOffset).load(std::memory_order_acquire), size_.segments);
}

std::uint64_t IndexTable::counted_entries() const {
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < size_.slots + kMostProbes; ++i) {
    if (slot(i)[1].load(std::memory_order_relaxed) != 0) ++count;
  }
  return count;
}

bool IndexTable::has_room() const { return 5 * (entries() + 1) <= 4 * size_.slots; }

bool IndexTable::add(std::uint64_t i, const RawSlot& raw) {
  if (!has_room()) return false;
  write(i, raw);
  add_entries(1);
  return true;
}

void IndexTable::set_segment(std::uint64_t i, RawSlot raw, std::uint64_t number) {
  raw.place = number << kOffsetBits;
  write(i, raw);
}

bool IndexTable::insert(const Slot& entry, Sequence instead_of) {
  const auto raw = encode(entry);
  const auto i = raw ? place_for(entry.tag) : std::nullopt;
  if (!i) return false;
  RawSlot known;
  (void)read(*i, known);
  if (known.sequence == 0) return add(*i, *raw);
  const std::uint64_t number = known.place >> kOffsetBits;
  if (number == kShared) return true;
  const bool is_same = number == kRemoved || known.sequence == entry.sequence ||
                       (instead_of != 0 && known.sequence == instead_of);
  if (is_same) {
    write(*i, *raw);
  } else {
    set_segment(*i, known, kShared);
  }
  return true;
}

bool IndexTable::insert_older(const Slot& entry) {
  const auto raw = encode(entry);
  const auto i = raw ? place_for(entry.tag) : std::nullopt;
  if (!i) return false;
  RawSlot known;
  (void)read(*i, known);
  if (known.sequence == 0) return add(*i, *raw);
  // Either it is the same entry, replaced meanwhile, or another one: only the database can tell.
  if (known.sequence != entry.sequence) set_segment(*i, known, kShared);
  return true;
}

bool IndexTable::remove(std::uint64_t tag, Sequence sequence) {
  const auto i = place_for(tag);
  if (!i) return true;
  RawSlot known;
  (void)read(*i, known);
  if (known.sequence == 0) {
    return !is_building() || add(*i, {tag, sequence, kRemoved << kOffsetBits, 0});
  }
  if (known.sequence != sequence || known.place >> kOffsetBits == kShared) return true;
  if (is_building()) {
    set_segment(*i, known, kRemoved);
  } else {
    erase(*i);
  }
  return true;
}

// Moves up the entries that the removed one had displaced, so that no search ends too early.
void IndexTable::erase(std::uint64_t hole) {
  const std::uint64_t end = size_.slots + kMostProbes;
  for (std::uint64_t i = hole + 1; i < end; ++i) {
    RawSlot raw;
    (void)read(i, raw);
    if (raw.sequence == 0) break;
    if (home(raw.tag) > hole) continue;
    write(hole, raw);
    hole = i;
  }
  slot(hole)[1].store(0, std::memory_order_release);
  add_entries(-1);
}

void IndexTable::finish_building() {
  // Begins at the end, so that every entry that moves up was looked at before.
  for (std::uint64_t i = size_.slots + kMostProbes; i-- > 0;) {
    RawSlot raw;
    (void)read(i, raw);
    if (raw.sequence != 0 && raw.place >> kOffsetBits == kRemoved) erase(i);
  }
  word(kBuildingOffset).store(0, std::memory_order_release);
}

Result<std::shared_ptr<IndexTable>> IndexTable::grown(fs::FileSystem& file_system,
                                                      const std::string& path) const {
  // Counts the entries, as the number in the file may be damaged and determines the size of the new
  // one.
  const std::uint64_t counted = counted_entries();
  if (counted != entries()) {
    log_once(LogLevel::kWarning, "count:" + path,
             "'" + path + "' says that it has " + std::to_string(entries()) + " entries, and has " +
                 std::to_string(counted) + ": it is damaged, and is made anew");
  }
  MODCACHE_ASSIGN_OR_RETURN(
      auto created,
      create(file_system, path, owner_, Size::for_entries(counted, listed_segments()), false));
  IndexTable& table = *created;
  for (std::uint64_t i = 0; i < size_.slots + kMostProbes; ++i) {
    RawSlot raw;
    if (!read(i, raw) || raw.sequence == 0) continue;
    Slot found;
    const auto place = table.place_for(raw.tag);
    if (!place) return Status::no_space("the index cannot grow");
    if (decode(raw, found)) {
      const auto copied = table.encode(found);
      if (!copied) return Status::no_space("the index has too many segments");
      raw = *copied;
    } else {
      raw.place = kShared << kOffsetBits;
    }
    if (!table.add(*place, raw)) return Status::no_space("the index cannot grow");
  }
  table.set_last_sequence(last_sequence());
  return created;
}

// Encodes units of 64 bytes as a number of 10 bits and a shift, at most 0.1 % too large.
std::uint16_t IndexTable::encode_size(std::uint64_t size_bytes) {
  std::uint64_t units = (size_bytes + kOffsetUnitBytes - 1) / kOffsetUnitBytes;
  if (units < 1024) return static_cast<std::uint16_t>(units);
  unsigned shift = 0;
  while ((units >> shift) >= 2048) ++shift;
  units = (units + (std::uint64_t{1} << shift) - 1) >> shift;
  if (units >= 2048) {
    units = 1024;
    ++shift;
  }
  const std::uint64_t size_class = (std::uint64_t{shift} + 1) << 10 | (units & 1023);
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(size_class, 0xffff));
}

std::uint64_t IndexTable::decode_size(std::uint16_t size_class) {
  const std::uint64_t low = size_class & 1023;
  const unsigned exponent = size_class >> 10;
  const std::uint64_t units = exponent == 0 ? low : (1024 + low) << (exponent - 1);
  return units * kOffsetUnitBytes;
}

}  // namespace modcache::store
